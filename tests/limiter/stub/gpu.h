/* Copyright: (c) openfleet.gpu contributors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Interface of gpu.c (streams, capture) for events.c and kernels.c (modules, launches).
 */
#ifndef OPENFLEET_STUB_GPU_H
#define OPENFLEET_STUB_GPU_H

#include "clock.h"
#include "stub.h"

enum { CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906 };

struct CUstream_st {
    int gpu, queue;
    CUcontext context;
    CUgraph graph; /* the graph that is being captured */
    int mode;
    bool broken;
    bool launched, parted; /* launched: a kernel was launched; parted: an event was recorded after it */
    struct CUstream_st *next;
};

/* Return the stream of a handle (0 is valid for legacy functions), or NULL without a context. */
struct CUstream_st *gpu_stream(CUstream handle, bool per_thread);
/* Return the index of this process on a GPU. The world's lock must be held. */
int gpu_tenant(struct world *w, int gpu);
/* Append an operation to a stream's queue, and wait while the queue is full. The world's lock must be held. */
void gpu_submit(struct world *w, struct CUstream_st *stream, struct op op);
/* Append a kernel to a stream's queue. A GPU_NEEDS_NEXT kernel ends when the process has launched another kernel, and
 * uses no GPU time. */
#define GPU_NEEDS_NEXT UINT64_MAX
void gpu_submit_kernel(struct CUstream_st *stream, uint64_t nanoseconds);
/* Append a kernel that makes progress once the matching kernels of all `ranks` processes have started. */
void gpu_submit_meeting(struct CUstream_st *stream, uint64_t nanoseconds, int meeting, int ranks);
/* Wait for all work in the stream. */
void gpu_wait_for_stream(struct CUstream_st *stream);
/* Set `captured` if this launch is captured instead of run. Returns an error if the launch is not allowed. */
CUresult gpu_capturing(struct CUstream_st *stream, bool *captured);

/* Return an error if a call is forbidden during a capture, by the thread's mode: it may deadlock or reorder work. */
CUresult gpu_unsafe(void);

#endif
