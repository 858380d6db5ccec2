/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Streams: their contexts, and whether they are captured into a graph.
 */
#ifndef STREAMS_H
#define STREAMS_H

#include <stdbool.h>

#include "base/cuda_abi.h"

/* Return whether this is not a default stream. Default streams have no stream object. */
static inline bool stream_is_object(CUstream stream)
{
	return stream && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD;
}

/* Make the stream's context current if another one is current. Pass the result to vgpu_leave_stream. */
bool vgpu_enter_stream(CUstream);
bool vgpu_enter_context(CUcontext);
void vgpu_leave_stream(bool entered);

/* Return whether the stream is being captured into a graph. */
bool vgpu_is_capturing(CUstream, bool per_thread);

/* Let this thread make calls that would otherwise invalidate another thread's stream capture. Return this thread's
 * previous capture mode, for restore_capture. */
int relax_capture(void);
void restore_capture(int mode);

#endif
