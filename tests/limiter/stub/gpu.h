/* Copyright: (c) openfleet.gpu contributors
 * SPDX-License-Identifier: Apache-2.0
 *
 * What gpu.c (streams, capture) offers events.c and kernels.c (modules, launches).
 */
#ifndef OPENFLEET_STUB_GPU_H
#define OPENFLEET_STUB_GPU_H

#include "clock.h"
#include "stub.h"

enum { CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906 };

struct CUstream_st {
    int gpu, queue;
    CUcontext context;
    CUgraph graph; /* being captured */
    int mode;
    bool broken;
    bool launched, parted; /* a kernel was launched; an event was recorded since then */
    struct CUstream_st *next;
};

/* The stream of a handle, which for the legacy form may be 0; NULL if there is no context. */
struct CUstream_st *gpu_stream(CUstream handle, bool per_thread);
/* This process on a GPU; with the world's lock held. */
int gpu_tenant(struct world *w, int gpu);
/* Puts an operation into a stream's queue, with the world's lock held; waits if the queue is full. */
void gpu_submit(struct world *w, struct CUstream_st *stream, struct op op);
/* Puts a kernel into a stream's queue. GPU_NEEDS_NEXT: one that ends when the process has launched another, and takes
 * no time of the GPU. */
#define GPU_NEEDS_NEXT UINT64_MAX
void gpu_submit_kernel(struct CUstream_st *stream, uint64_t nanoseconds);
/* One that makes progress when its like in each of `ranks` processes has started. */
void gpu_submit_meeting(struct CUstream_st *stream, uint64_t nanoseconds, int meeting, int ranks);
/* Waits for what the stream has been given. */
void gpu_wait_for_stream(struct CUstream_st *stream);
/* Whether this launch is to be captured rather than run; the error if it may not be at all. */
CUresult gpu_capturing(struct CUstream_st *stream, bool *captured);

/* Calls that might deadlock or reorder are refused during a capture, as the mode of the thread says. */
CUresult gpu_unsafe(void);

#endif
