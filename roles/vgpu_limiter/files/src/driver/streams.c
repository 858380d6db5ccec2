/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Contexts and captures of streams.
 */
#include "driver/streams.h"

#include "driver/reals.h"

bool vgpu_enter_context(CUcontext of)
{
	CUcontext current = NULL;
	if (REAL(cuCtxGetCurrent)(&current) == CUDA_SUCCESS && current == of)
		return false;
	return REAL(cuCtxPushCurrent_v2)(of) == CUDA_SUCCESS;
}

bool vgpu_enter_stream(CUstream stream)
{
	CUcontext of = NULL;
	return stream_is_object(stream) && REAL(cuStreamGetCtx)(stream, &of) == CUDA_SUCCESS && vgpu_enter_context(of);
}

void vgpu_leave_stream(bool entered)
{
	CUcontext of;
	if (entered)
		REAL(cuCtxPopCurrent_v2)(&of);
}

bool vgpu_is_capturing(CUstream stream, bool per_thread)
{
	int status = CU_STREAM_CAPTURE_STATUS_NONE;
	CUresult result = per_thread ? REAL(cuStreamIsCapturing_ptsz)(stream, &status) : REAL(cuStreamIsCapturing)(stream, &status);
	return result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

int relax_capture(void)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	if (HAVE(cuThreadExchangeStreamCaptureMode))
		REAL(cuThreadExchangeStreamCaptureMode)(&mode);
	return mode;
}

void restore_capture(int mode)
{
	if (HAVE(cuThreadExchangeStreamCaptureMode))
		REAL(cuThreadExchangeStreamCaptureMode)(&mode);
}
