/* Copyright: (c) openfleet.gpu contributors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Replaces NVIDIA's driver library (libcuda.so.1) and NVML (libnvidia-ml.so.1) on machines without a GPU. The stub counts
 * bytes exactly, in a file that tests read. The file shows what the card has really allocated, whatever a limiter assumes.
 *
 * This header declares what the source files use from each other:
 *   card.c     the shared file: GPUs, capacity, bytes by process and by group, faults       (read by card.py)
 *   proc.c     cuGetProcAddress and the table of names, generated from functions.txt
 *   device.c   initialization and devices    context.c contexts, and the context stack of each thread
 *   memory.c   cuMemAlloc and similar functions, pointers, arrays, IPC
 *   old.c      names from before CUDA 3.2, and launches from before CUDA 4
 *   pool.c     stream-ordered pools          vmm.c     physical handles, mapping
 *   graph.c    graphs, their nodes, graph memory
 *   gpu.c      streams, events, modules, launches, capture: the queue of a simulated GPU
 *   clock.c    simulated time
 * All other functions are weak symbols, generated from functions.txt, and return CUDA_ERROR_NOT_SUPPORTED.
 *
 * Environment variables, which are read once, with their defaults:
 *   STUB_CARD             the shared file; without it, a private file that ends with the process
 *   STUB_GPUS             number of GPUs (1), used by the process that creates the file
 *   STUB_MEMORY           bytes of each GPU (16 GiB), used by the process that creates the file
 *   STUB_GROUP            a group to which this process's bytes are added as well (at most 16 groups)
 *   STUB_CONTEXT_BYTES    bytes that each context uses (0)
 *   STUB_POOL_GROWTH      minimum growth of a pool (32 MiB)
 *   STUB_FAIL             FUNCTION:N[:CODE]: the Nth call (from 1) of a function that allocates fails with CODE (2)
 *   STUB_RECORDS_FAIL     N: every Nth recording of an event fails
 *   STUB_LAUNCH_NS        host time of a launch, in simulated nanoseconds (0)
 *   STUB_LAZY_NS          additional host time of a function's first launch, which loads the function (0)
 *   CUDA_LAUNCH_BLOCKING  1: a launch returns when its kernel is done, as in the driver
 *   STUB_PAUSE_GROWN      a FIFO: after a pool grew or rows were allocated, the call waits until the FIFO was opened and closed
 *   STUB_PAUSE_NVML       a FIFO: the same before NVML lists processes; no pause if the file does not exist (any more)
 *   STUB_PAUSE_ANSWERED   a FIFO: the same after NVML has listed processes
 *   STUB_ALIASES          1: cuGetProcAddress returns other addresses than those of the exported symbols
 *   STUB_REQUESTS         a file to which each request to cuGetProcAddress is appended: name version flags
 *   STUB_DRIVER_VERSION   13000
 *   CUDA_VISIBLE_DEVICES  indexes or UUIDs (a unique prefix is enough), as in the driver
 */
#ifndef OPENFLEET_STUB_H
#define OPENFLEET_STUB_H

#include "cuda.h"

#include <stdbool.h>

#define EXPORT __attribute__((visibility("default")))

enum { STUB_MAX_GPUS = 16, STUB_MAX_PROCESSES = 2048, STUB_MAX_GROUPS = 16 };

/* Kinds of allocations. */
enum stub_kind { STUB_LINEAR, STUB_MANAGED, STUB_ARRAY, STUB_POOL, STUB_PHYSICAL, STUB_GRAPH, STUB_CONTEXT, STUB_KINDS };

/* --- card.c: GPUs are identified by the card's index, not by the process's ordinal (CUDA_VISIBLE_DEVICES). --- */

/* Allocate bytes on a GPU. Returns CUDA_ERROR_OUT_OF_MEMORY if there is not enough, or the fault of STUB_FAIL. */
CUresult stub_take(const char *function, int gpu, enum stub_kind kind, size_t bytes);
void stub_give(int gpu, enum stub_kind kind, size_t bytes);
void stub_memory(int gpu, size_t *free_bytes, size_t *total);
/* Return an environment setting as a number. */
unsigned long long stub_setting(const char *name, unsigned long long otherwise);
/* Wait at the FIFO in the setting. Returns at once if there is no FIFO (any more). */
void stub_pause(const char *setting);

/* --- device.c --- */

/* Return CUDA_SUCCESS, or CUDA_ERROR_NOT_INITIALIZED before cuInit and in a forked child. Each entry point calls this
 * first. */
CUresult stub_ready(void);
/* Return the card's index of a GPU by the process's ordinal, or -1. */
int stub_gpu_of(CUdevice device);
/* Return CUDA_SUCCESS if the driver is initialized, `answer` is not NULL, and the process has this device. */
CUresult stub_device_known(CUdevice device, const void *answer);
/* Number of SMs that a device reports. */
enum { STUB_SMS = 132 };

/* Count a driver call from any caller. stub_calls() returns the count. Only functions that the limiter may call around
 * a launch are counted. */
void stub_count_call(void);

/* --- context.c --- */

/* Return the GPU of the calling thread's context, or -1. */
int stub_current_gpu(void);
/* Return a unique ID of the calling thread's context, or 0 without a context. IDs are never reused. */
uint64_t stub_current_context(void);

/* --- pool.c --- */

/* Shrink pools to their thresholds. gpu.c calls this at each synchronization, when a GPU's work is done. */
void stub_pools_settle(int gpu);

/* --- graph.c: the graphs. Streams and capture are in gpu.c. --- */

CUgraph stub_graph_new(void);
/* Add nodes during a capture. */
void stub_graph_add_kernel(CUgraph graph, uint64_t nanoseconds);
CUresult stub_graph_add_memory(CUgraph graph, int gpu, size_t bytes, CUdeviceptr *address);
void stub_graph_free_memory(CUgraph graph, CUdeviceptr address);
/* Prepare a launch of an executable graph: allocate its memory, and return the total time of its kernels. */
CUresult stub_graph_memory(CUgraphExec exec);
uint64_t stub_graph_nanoseconds(CUgraphExec exec);

/* --- gpu.c --- */

/* Return a stream's GPU (for default streams, the GPU of the current context), or -1. */
int stub_stream_gpu(CUstream stream);
/* Return the graph that a stream is captured into, or NULL. */
CUgraph stub_stream_graph(CUstream stream);
/* Return a kernel's duration, for kernel nodes that are added explicitly. */
uint64_t stub_kernel_nanoseconds(CUfunction function);
/* Wait for all work of this process on a GPU (cuCtxSynchronize, cuMemFree), and shrink the pools. */
void stub_gpu_wait(int gpu);

/* --- proc.c: requests to cuGetProcAddress --- */
void *stub_symbol(const char *name, int version, uint64_t flags, int *status);

#endif
