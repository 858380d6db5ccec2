/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Which GPU a call means, and the tenant's account of it. Numbers of devices are the process's own
 * (CUDA_VISIBLE_DEVICES), so GPUs are told by UUID.
 */
#include <errno.h>
#include <string.h>

#include "tenant.h"

enum { UNKNOWN, KNOWN };

static bool uuid_of_device(struct state *state, CUdevice device, CUuuid *uuid)
{
	if (device < 0 || device >= DEVICES)
		return false;
	if (atomic_load_explicit(&state->device_known[device], memory_order_acquire) == KNOWN) {
		*uuid = state->device_uuid[device];
		return true;
	}
	/* The second form names the MIG device, the first the GPU around it. */
	if ((HAVE(cuDeviceGetUuid_v2) ? REAL(cuDeviceGetUuid_v2)(uuid, device) : REAL(cuDeviceGetUuid)(uuid, device)) != CUDA_SUCCESS)
		return false;
	mutex_lock(&state->tables_lock);
	if (atomic_load_explicit(&state->device_known[device], memory_order_relaxed) == UNKNOWN) {
		state->device_uuid[device] = *uuid;
		atomic_store_explicit(&state->device_known[device], KNOWN, memory_order_release);
	}
	mutex_unlock(&state->tables_lock);
	return true;
}

int vgpu_gpu_of_device(const struct quota *quota, CUdevice device)
{
	struct state *state = vgpu_state();
	CUuuid uuid;
	if (!state || !quota || !uuid_of_device(state, device, &uuid))
		return -1;
	for (int i = 0; i < quota->gpu_count; i++)
		if (memcmp(&quota->gpus[i].uuid, &uuid, sizeof uuid) == 0)
			return i;
	return -1;
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
	const struct state *state = vgpu_state();
	struct target target = { .gpu = quota->refuses_all ? NO_PLACE : NOT_COUNTED, .device = device };
	int i = vgpu_gpu_of_device(quota, device);
	if (i >= 0) {
		target.gpu = quota->gpus[i].region;
		target.limit_bytes = quota->gpus[i].memory_bytes ? quota->gpus[i].memory_bytes : UINT64_MAX;
		if (UNLIKELY(target.gpu < 0))
			target.gpu = quota->gpus[i].memory_bytes ? NO_PLACE : NOT_COUNTED;
		if (UNLIKELY(state->uncounted) && quota->gpus[i].memory_bytes)
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

static bool is_object(CUstream stream)
{
	return stream && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD;
}

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
	return is_object(stream) && REAL(cuStreamGetCtx)(stream, &of) == CUDA_SUCCESS && vgpu_enter_context(of);
}

void vgpu_leave_stream(bool entered)
{
	CUcontext of;
	if (entered)
		REAL(cuCtxPopCurrent_v2)(&of);
}

struct target target_of_stream(CUstream stream)
{
	bool entered = vgpu_quota_now() && vgpu_enter_stream(stream);
	struct target target = target_of_context();
	vgpu_leave_stream(entered);
	return target;
}

/* Out of memory is the last answer: pools may hold what nobody uses, which the driver too would give
 * up before it says so. */
bool charge(const struct target *target, uint64_t bytes)
{
	struct state *state = vgpu_state();
	if (UNLIKELY(target->gpu == NO_PLACE))
		return false;
	if (LIKELY(tenant_reserve(state, target->gpu, bytes, target->limit_bytes)))
		return true;
	settle_pools(state, target->gpu, true);
	if (tenant_reserve(state, target->gpu, bytes, target->limit_bytes))
		return true;
	tenant_refused(state, target->gpu);
	return false;
}

void uncharge(int gpu, uint64_t bytes)
{
	tenant_give_back(vgpu_state(), gpu, bytes);
}

void tenant_settle(struct state *state, const struct quota *quota)
{
	/* The driver's calls in here may come through a hook again: not into the same. */
	if (!state->region || atomic_exchange(&state->settling, true))
		return;
	settle_pools(state, -1, false);
	settle_graphs(state, quota);
	settle_nvml(state, quota);
	atomic_store(&state->settling, false);
}
