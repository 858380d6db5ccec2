/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Hooks that create and destroy contexts, and that set limits which change a context's size.
 */
#include "account/context_events.h"
#include "account/contexts.h"
#include "account/graph_memory.h"
#include "account/holdings.h"
#include "account/pool_blocks.h"
#include "driver/reals.h"
#include "process/state.h"
#include "process/target.h"
#include "throttle/throttle.h"

static struct making making_on(CUdevice device) { return (struct making){ .target = target_of_device(device) }; }

static bool begins(struct making *m) { return context_admit(vgpu_account(), vgpu_quota_now(), m); }

static CUresult ends(const struct making *m, CUresult result, const CUcontext *context)
{
	return context_made(vgpu_account(), m, result, result == CUDA_SUCCESS && context ? *context : NULL);
}

CUresult cuCtxCreate(CUcontext *context, unsigned flags, CUdevice device)
{
	struct making m = making_on(device);
	if (!begins(&m))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return ends(&m, REAL(cuCtxCreate)(context, flags, device), context);
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
	struct making m = making_on(device);
	if (!begins(&m))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return ends(&m, REAL(cuCtxCreate_v2)(context, flags, device), context);
}

CUresult cuCtxCreate_v3(CUcontext *context, void *affinity, int count, unsigned flags, CUdevice device)
{
	struct making m = making_on(device);
	if (!begins(&m))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return ends(&m, REAL(cuCtxCreate_v3)(context, affinity, count, flags, device), context);
}

CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned flags, CUdevice device)
{
	struct making m = making_on(device);
	if (!begins(&m))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return ends(&m, REAL(cuCtxCreate_v4)(context, parameters, flags, device), context);
}

static bool primary_is_active(CUdevice device)
{
	unsigned flags;
	int active = 0;
	return REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) == CUDA_SUCCESS && active;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	if (!vgpu_quota() || primary_is_active(device))
		return REAL(cuDevicePrimaryCtxRetain)(context, device);
	struct making m = making_on(device);
	if (!begins(&m))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return ends(&m, REAL(cuDevicePrimaryCtxRetain)(context, device), context);
}

/* --- destruction --- */

static void forget_context(struct account *account, CUcontext context)
{
	context_is_gone(account, context);
	forget_allocations_of(account, context);
}

static CUresult destroy_context(CUcontext context, CUresult real(CUcontext))
{
	struct account *account = context ? vgpu_account() : NULL;
	if (account) {
		throttle_settle();
		throttle_context_gone(context);
	}
	if (account)
		context_change_begins(account);
	CUresult result = real(context);
	if (account && result == CUDA_SUCCESS) {
		forget_context(account, context);
		pools_have_given_back(account);
	}
	if (account)
		context_change_ends(account);
	return result;
}

CUresult cuCtxDestroy(CUcontext context) { return destroy_context(context, REAL(cuCtxDestroy)); }
CUresult cuCtxDestroy_v2(CUcontext context) { return destroy_context(context, REAL(cuCtxDestroy_v2)); }

/* A primary context ends when its last user releases it. Its handle can be read only by retaining the context. */
static CUresult release_primary(CUdevice device, CUresult real(CUdevice), CUresult release(CUdevice), bool always)
{
	struct account *account = vgpu_quota_now() ? vgpu_account() : NULL;
	CUcontext primary = NULL;
	if (account && primary_is_active(device) && REAL(cuDevicePrimaryCtxRetain)(&primary, device) == CUDA_SUCCESS)
		release(device);
	if (primary) {
		throttle_settle();
		context_change_begins(account);
	}
	CUresult result = real(device);
	if (result == CUDA_SUCCESS && primary && (always || !primary_is_active(device))) {
		throttle_context_gone(primary);
		forget_context(account, primary);
		/* The device's default pool and graphs may have lost their memory too. */
		settle_pools(account, -1, false);
		graphs_settle_all(account, vgpu_quota_now());
	}
	if (primary)
		context_change_ends(account);
	return result;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
	return release_primary(device, REAL(cuDevicePrimaryCtxRelease), REAL(cuDevicePrimaryCtxRelease), false);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	return release_primary(device, REAL(cuDevicePrimaryCtxRelease_v2), REAL(cuDevicePrimaryCtxRelease_v2), false);
}

CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
	return release_primary(device, REAL(cuDevicePrimaryCtxReset), REAL(cuDevicePrimaryCtxRelease), true);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	return release_primary(device, REAL(cuDevicePrimaryCtxReset_v2), REAL(cuDevicePrimaryCtxRelease_v2), true);
}

/* --- limits --- */

/* Return the bytes that a context needs for this limit. Stack memory exists for every thread that the GPU can run at
 * once. */
static uint64_t limit_bytes(int limit, uint64_t value, CUdevice device)
{
	int processors = 0, threads = 0;
	uint64_t bytes;
	switch (limit) {
	case CU_LIMIT_PRINTF_FIFO_SIZE:
	case CU_LIMIT_MALLOC_HEAP_SIZE:
		return value;
	case CU_LIMIT_STACK_SIZE:
		if (REAL(cuDeviceGetAttribute)(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device) != CUDA_SUCCESS
		    || REAL(cuDeviceGetAttribute)(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device) != CUDA_SUCCESS
		    || processors < 0 || threads < 0)
			return 0;
		return __builtin_mul_overflow((uint64_t)processors * (uint64_t)threads, value, &bytes) ? UINT64_MAX : bytes;
	default:
		return 0;
	}
}

static uint64_t limit_now(int limit, CUdevice device)
{
	size_t value = 0;
	return REAL(cuCtxGetLimit)(&value, limit) == CUDA_SUCCESS ? limit_bytes(limit, value, device) : 0;
}

CUresult cuCtxSetLimit(int limit, size_t value)
{
	struct making m = { .target = target_of_context() };
	uint64_t before = 0, wanted = 0;
	if (m.target.gpu >= 0 && m.target.limit_bytes != UINT64_MAX) {
		before = limit_now(limit, m.target.device);
		wanted = limit_bytes(limit, value, m.target.device);
	}
	if (wanted == before)
		return REAL(cuCtxSetLimit)(limit, value);
	if (!context_limit_admit(vgpu_account(), &m, before, wanted))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return context_limit_set(vgpu_account(), &m, before, wanted, REAL(cuCtxSetLimit)(limit, value));
}
