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

/* Not one of the two default streams, which have no handle of their own. */
static inline bool stream_is_object(CUstream stream)
{
	return stream && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD;
}

/* Makes the stream's context the thread's, where it is another; vgpu_leave_stream is told what this returned. */
bool vgpu_enter_stream(CUstream);
bool vgpu_enter_context(CUcontext);
void vgpu_leave_stream(bool entered);

/* Whether what is given to the stream becomes part of a graph. */
bool vgpu_is_capturing(CUstream, bool per_thread);

/* While another thread captures a stream, some calls would spoil its capture, were it not for this. Returns the thread's mode,
 * for restore_capture. */
int relax_capture(void);
void restore_capture(int mode);

#endif
