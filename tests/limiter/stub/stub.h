/* Copyright: (c) openfleet.gpu contributors
 * SPDX-License-Identifier: Apache-2.0
 *
 * A stand-in of NVIDIA's driver library (libcuda.so.1) and of NVML (libnvidia-ml.so.1) for machines without a GPU. It
 * counts bytes exactly, in a file that tests read: what "the card" saw, whatever a limiter in between believes.
 *
 * What the pieces offer each other:
 *   card.c     the shared file: GPUs, capacity, bytes by process and by group, faults       (kept by the harness)
 *   proc.c     cuGetProcAddress and the table of names, made from functions.txt
 *   device.c   start and devices             context.c contexts, and each thread's stack of them
 *   memory.c   cuMemAlloc and its kin, pointers, arrays, IPC
 *   old.c      the names of before CUDA 3.2, and launches of before CUDA 4
 *   pool.c     stream-ordered pools          vmm.c     physical handles, mapping
 *   graph.c    graphs, their nodes, graph memory
 *   gpu.c      streams, events, modules, launches, capture: the queue of a simulated GPU
 *   clock.c    virtual time
 * Functions that none of them defines exist too (weak, made from functions.txt) and answer CUDA_ERROR_NOT_SUPPORTED.
 *
 * Settings, all from the environment, read once:
 *   STUB_CARD             the shared file; without it a private one, gone with the process
 *   STUB_GPUS             number of GPUs (1), used by whoever makes the file
 *   STUB_MEMORY           bytes of each GPU (16 GiB), likewise
 *   STUB_GROUP            name under which this process's bytes are summed as well (at most 16 names)
 *   STUB_CONTEXT_BYTES    bytes that each context takes (0)
 *   STUB_POOL_GROWTH      by how much a pool grows at least (32 MiB)
 *   STUB_FAIL             FUNCTION:N[:CODE]: the Nth call (from 1) of a function that takes memory fails so (CODE 2)
 *   STUB_RECORDS_FAIL     N: each Nth recording of an event fails
 *   STUB_LAUNCH_NS        how long a launch takes on the host, in virtual time (0)
 *   STUB_LAZY_NS          how much longer a function's first launch takes there, since it loads the function (0)
 *   CUDA_LAUNCH_BLOCKING  1: a launch returns when its kernel is done, as the driver's
 *   STUB_PAUSE_GROWN      a FIFO: a pool has grown, and the call waits until somebody has opened it and closed it
 *   STUB_PAUSE_NVML       the same before NVML lists processes; without such a file (any more) there is no pause
 *   STUB_PAUSE_ANSWERED   the same when it has listed them
 *   STUB_ALIASES          1: cuGetProcAddress answers with other addresses than the exported symbols'
 *   STUB_REQUESTS         a file to which each request of cuGetProcAddress is appended: name version flags
 *   STUB_DRIVER_VERSION   13000
 *   CUDA_VISIBLE_DEVICES  indexes or UUIDs (a unique beginning will do), as the driver's
 */
#ifndef OPENFLEET_STUB_H
#define OPENFLEET_STUB_H

#include "cuda.h"

#include <stdbool.h>

#define EXPORT __attribute__((visibility("default")))

enum { STUB_MAX_GPUS = 16, STUB_MAX_PROCESSES = 2048, STUB_MAX_GROUPS = 16 };

/* What bytes are taken for. */
enum stub_kind { STUB_LINEAR, STUB_MANAGED, STUB_ARRAY, STUB_POOL, STUB_PHYSICAL, STUB_GRAPH, STUB_CONTEXT, STUB_KINDS };

/* --- card.c: GPUs are named here by the card's index, which is not the process's ordinal (CUDA_VISIBLE_DEVICES). --- */

/* Takes bytes from a GPU; CUDA_ERROR_OUT_OF_MEMORY if it has not got them, or the fault that STUB_FAIL names. */
CUresult stub_take(const char *function, int gpu, enum stub_kind kind, size_t bytes);
void stub_give(int gpu, enum stub_kind kind, size_t bytes);
void stub_memory(int gpu, size_t *free_bytes, size_t *total);
/* An environment setting as a number. */
unsigned long long stub_setting(const char *name, unsigned long long otherwise);
/* Waits at the FIFO that the setting names; where there is none (any more) it does not. */
void stub_pause(const char *setting);

/* --- device.c --- */

/* CUDA_SUCCESS, or CUDA_ERROR_NOT_INITIALIZED before cuInit and in a child of a process that had called it. Each entry
 * point begins with it. */
CUresult stub_ready(void);
/* The GPU (card's index) of an ordinal of this process; -1 if there is no such ordinal. */
int stub_gpu_of(CUdevice device);
/* CUDA_SUCCESS if the driver is ready, there is room for an answer, and this is a device of the process. */
CUresult stub_device_known(CUdevice device, const void *answer);
/* Number of SMs that a device says it has. */
enum { STUB_SMS = 132 };

/* A call of the driver by whoever it is; stub_calls() says how many there were. Not all functions count: those that the
 * limiter may call around a launch do. */
void stub_count_call(void);

/* --- context.c --- */

/* The GPU of the calling thread's context; -1 without one. */
int stub_current_gpu(void);
/* An id of the calling thread's context that is never used again; 0 without one. */
uint64_t stub_current_context(void);

/* --- pool.c --- */

/* The work that a GPU had is done (gpu.c calls it at each synchronisation): pools fall back to their thresholds. */
void stub_pools_settle(int gpu);

/* --- graph.c: gpu.c owns streams and with them capture; the graph itself is here --- */

CUgraph stub_graph_new(void);
/* Nodes that capture adds. */
void stub_graph_add_kernel(CUgraph graph, uint64_t nanoseconds);
CUresult stub_graph_add_memory(CUgraph graph, int gpu, size_t bytes, CUdeviceptr *address);
void stub_graph_free_memory(CUgraph graph, CUdeviceptr address);
/* What a launch of an instantiated graph needs: its memory (taken here), then its kernels' time in all. */
CUresult stub_graph_memory(CUgraphExec exec);
uint64_t stub_graph_nanoseconds(CUgraphExec exec);

/* --- gpu.c --- */

/* The GPU that a stream is on (the current context's for the default streams); -1 if that cannot be said. */
int stub_stream_gpu(CUstream stream);
/* The graph that a stream is being captured into; NULL if it is not. */
CUgraph stub_stream_graph(CUstream stream);
/* The time a kernel takes, for kernel nodes that are added by hand. */
uint64_t stub_kernel_nanoseconds(CUfunction function);
/* Waits for all work of this process on a GPU (cuCtxSynchronize, cuMemFree); settles the pools. */
void stub_gpu_wait(int gpu);

/* cuGetProcAddress's requests, proc.c. */
void *stub_symbol(const char *name, int version, uint64_t flags, int *status);

#endif
