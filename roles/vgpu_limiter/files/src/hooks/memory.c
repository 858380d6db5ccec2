/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Hooks of device memory that is allocated and freed immediately, without a stream.
 */
#include "account/holdings.h"
#include "account/pool_blocks.h"
#include "driver/reals.h"
#include "process/state.h"
#include "process/target.h"

/* Return false for calls that the driver will refuse, and for calls whose memory is not charged. They go directly to
 * the driver. */
static inline bool is_counted(const struct target *target, const void *pointer, size_t bytes)
{
	return target->gpu != NOT_COUNTED && pointer && bytes > 0;
}

/* Process the driver's result. Allocated memory is already charged: record it, or free it if it cannot be recorded. */
static CUresult allocated(const struct target *target, CUresult result, const CUdeviceptr *pointer, uint64_t bytes)
{
	if (result == CUDA_SUCCESS) {
		if (remember_allocation(vgpu_account(), T_POINTER, *pointer, target, bytes))
			return CUDA_SUCCESS;
		REAL(cuMemFree_v2)(*pointer);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	uncharge(vgpu_account(), target->gpu, bytes);
	return result;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
	struct target target = target_of_context();
	if (!is_counted(&target, pointer, bytes))
		return REAL(cuMemAlloc_v2)(pointer, bytes);
	if (!charge(vgpu_account(), &target, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return allocated(&target, REAL(cuMemAlloc_v2)(pointer, bytes), pointer, bytes);
}

CUresult cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned bytes)
{
	struct target target = target_of_context();
	if (!is_counted(&target, pointer, bytes))
		return REAL(cuMemAlloc)(pointer, bytes);
	if (!charge(vgpu_account(), &target, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = REAL(cuMemAlloc)(pointer, bytes);
	CUdeviceptr found = result == CUDA_SUCCESS ? *pointer : 0;
	return allocated(&target, result, &found, bytes);
}

/* Return whether managed memory is exempt from this quota. Without accounting, the allocation is refused even if it
 * would be exempt. */
static bool is_beyond_quota(const struct target *target)
{
	return vgpu_quota_now()->managed_oversubscribed && target->gpu >= 0 && target->limit_bytes > 0;
}

/* Managed memory may be in host memory. It is charged in full to the context's GPU, unless the quota exempts it,
 * because the driver evicts it when other memory is needed. */
CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags)
{
	struct target target = target_of_context();
	if (!is_counted(&target, pointer, bytes))
		return REAL(cuMemAllocManaged)(pointer, bytes, flags);
	bool counts = !is_beyond_quota(&target);
	if (counts && !charge(vgpu_account(), &target, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	atomic_store_explicit(&vgpu_account()->has_managed, true, memory_order_relaxed);
	CUresult result = REAL(cuMemAllocManaged)(pointer, bytes, flags);
	return counts ? allocated(&target, result, pointer, bytes) : result;
}

/* Call the driver's function in either form. The old form returns 32-bit values. */
static CUresult ask_for_rows(bool old, CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element)
{
	CUdeviceptr_v1 found = 0;
	unsigned found_pitch = 0;
	if (!old)
		return REAL(cuMemAllocPitch_v2)(pointer, pitch, width, height, element);
	CUresult result = REAL(cuMemAllocPitch)(&found, &found_pitch, (unsigned)width, (unsigned)height, element);
	*pointer = found;
	*pitch = found_pitch;
	return result;
}

/* Allocate rows for which `least` bytes are reserved, and reserve the rest. Requires account->pools. Unless the result
 * is CUDA_SUCCESS, nothing stays reserved. */
static CUresult allocate_rows_held(bool old, struct target *target, uint64_t least, CUdeviceptr *pointer, size_t *pitch,
                                   size_t width, size_t height, unsigned element)
{
	CUdeviceptr found = 0;
	size_t found_pitch = 0;
	CUresult result = ask_for_rows(old, &found, &found_pitch, width, height, element);
	if (result != CUDA_SUCCESS) {
		uncharge(vgpu_account(), target->gpu, least);
		return result;
	}
	uint64_t bytes = (uint64_t)found_pitch * height;
	if (bytes > least && !charge(vgpu_account(), target, bytes - least)) {
		REAL(cuMemFree_v2)(found);
		uncharge(vgpu_account(), target->gpu, least);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	result = allocated(target, result, &found, bytes);
	if (result == CUDA_SUCCESS) {
		*pointer = found;
		*pitch = found_pitch;
	}
	return result;
}

/* Only the driver call shows the real pitch, which is at least the width. Reserve memory for the width first, and the
 * difference afterwards. In between, the driver holds more memory than is charged. The lock prevents nvml_settle from
 * charging the difference as a context. */
static CUresult allocate_rows(bool old, const struct target *counted, CUdeviceptr *pointer, size_t *pitch, size_t width,
                              size_t height, unsigned element)
{
	struct account *account = vgpu_account();
	struct target target = *counted;
	uint64_t least;
	if (__builtin_mul_overflow(width, height, &least) || !charge(account, &target, least))
		return CUDA_ERROR_OUT_OF_MEMORY;
	recursive_lock(&account->pools);
	CUresult result = allocate_rows_held(old, &target, least, pointer, pitch, width, height, element);
	pools_leave(account);
	return result;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element)
{
	struct target target = target_of_context();
	if (!is_counted(&target, pitch ? pointer : NULL, width) || height == 0)
		return REAL(cuMemAllocPitch_v2)(pointer, pitch, width, height, element);
	return allocate_rows(false, &target, pointer, pitch, width, height, element);
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *pointer, unsigned *pitch, unsigned width, unsigned height, unsigned element)
{
	struct target target = target_of_context();
	CUdeviceptr found = 0;
	size_t found_pitch = 0;
	if (!is_counted(&target, pitch ? pointer : NULL, width) || height == 0)
		return REAL(cuMemAllocPitch)(pointer, pitch, width, height, element);
	CUresult result = allocate_rows(true, &target, &found, &found_pitch, width, height, element);
	if (result == CUDA_SUCCESS) {
		*pointer = (CUdeviceptr_v1)found;
		*pitch = (unsigned)found_pitch;
	}
	return result;
}

/* Process the result of a call that frees memory. The driver may have waited for the GPU during the call. */
static CUresult freed(const struct freeing *freeing, CUresult result)
{
	freeing_ends(freeing, result);
	if (freeing->account)
		pools_have_given_back(freeing->account);
	return result;
}

CUresult cuMemFree_v2(CUdeviceptr pointer)
{
	struct freeing freeing = freeing_begins(vgpu_account(), T_POINTER, pointer);
	return freed(&freeing, REAL(cuMemFree_v2)(pointer));
}

CUresult cuMemFree(CUdeviceptr_v1 pointer)
{
	struct freeing freeing = freeing_begins(vgpu_account(), T_POINTER, pointer);
	return freed(&freeing, REAL(cuMemFree)(pointer));
}
