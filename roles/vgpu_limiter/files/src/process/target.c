/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Find the GPU in the tenant's accounting for a device, context or stream.
 */
#include "process/target.h"

#include "account/devices.h"
#include "driver/reals.h"
#include "driver/streams.h"
#include "process/state.h"

int vgpu_gpu_of_device(const struct quota *quota, CUdevice device)
{
	struct account *account = vgpu_account();
	return account ? device_in_quota(account, quota, device) : -1;
}

int vgpu_gpu_of_current_context(const struct quota *quota)
{
	CUdevice device;
	if (!quota || REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS)
		return -1;
	return vgpu_gpu_of_device(quota, device);
}

static struct target target_of(const struct quota *quota, CUdevice device)
{
	struct account *account = vgpu_account();
	struct target target = { .gpu = quota->refuses_all ? NO_PLACE : NOT_COUNTED, .device = device };
	int i = account ? device_in_quota(account, quota, device) : -1;
	if (i >= 0) {
		target.gpu = quota->gpus[i].region;
		target.waterline = quota->policy == POLICY_COLOCATE && quota->priority != 0 ? quota->waterline : 0;
		target.limit_bytes = quota->gpus[i].memory_bytes ? quota->gpus[i].memory_bytes : UINT64_MAX;
		if (UNLIKELY(target.gpu < 0))
			target.gpu = quota->gpus[i].memory_bytes ? NO_PLACE : NOT_COUNTED;
		if (UNLIKELY(account->tenant.uncounted) && quota->gpus[i].memory_bytes)
			target.limit_bytes = 0;
	}
	return target;
}

struct target target_of_device(CUdevice device)
{
	const struct quota *quota = vgpu_quota();
	return quota ? target_of(quota, device) : (struct target){ .gpu = NOT_COUNTED };
}

struct target target_of_context(void)
{
	const struct quota *quota = vgpu_quota();
	CUdevice device;
	if (!quota || REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS)
		return (struct target){ .gpu = NOT_COUNTED };
	return target_of(quota, device);
}

struct target target_of_stream(CUstream stream)
{
	bool entered = vgpu_quota_now() && vgpu_enter_stream(stream);
	struct target target = target_of_context();
	vgpu_leave_stream(entered);
	return target;
}
