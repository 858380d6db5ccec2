/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Hooks of calls that wait for the GPU. During such a call, the driver releases pool memory above the release
 * threshold. The process's next call may be much later, so settle the pools now, and let the tenant's other processes
 * use the memory. Finished work of an online tenant is counted too.
 */
#include "account/pool_blocks.h"
#include "driver/reals.h"
#include "process/state.h"
#include "throttle/throttle.h"

static CUresult waited(CUresult result)
{
	struct account *account = result == CUDA_SUCCESS ? vgpu_account() : NULL;
	if (account) {
		pools_have_given_back(account);
		throttle_waited();
	}
	return result;
}

CUresult cuCtxSynchronize(void) { return waited(REAL(cuCtxSynchronize)()); }
CUresult cuCtxSynchronize_v2(CUcontext context) { return waited(REAL(cuCtxSynchronize_v2)(context)); }
CUresult cuStreamSynchronize(CUstream stream) { return waited(REAL(cuStreamSynchronize)(stream)); }
CUresult cuStreamSynchronize_ptsz(CUstream stream) { return waited(REAL(cuStreamSynchronize_ptsz)(stream)); }
CUresult cuEventSynchronize(CUevent event) { return waited(REAL(cuEventSynchronize)(event)); }
