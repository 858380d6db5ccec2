/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Plain device memory, and the contexts that take it with them.
 */
#include "allocations.h"
#include "tenant.h"

/* A call that the driver will refuse anyway, or that is not counted, is the driver's alone. */
#define COUNTED(target, pointer, bytes) ((target).gpu != NOT_COUNTED && (pointer) && (bytes) > 0)

static CUcontext current_context(void)
{
	CUcontext context = NULL;
	REAL(cuCtxGetCurrent)(&context);
	return context;
}

/* The memory is there and paid for: from now on the table knows it, or it goes. */
static CUresult keep(const struct target *target, CUdeviceptr pointer, uint64_t bytes)
{
	struct entry entry = { .bytes = bytes, .with = (uintptr_t)current_context(), .gpu = (int16_t)target->gpu };
	if (remember(vgpu_state(), T_POINTER, pointer, &entry)) {
		tenant_note_peak(vgpu_state(), target->gpu);
		return CUDA_SUCCESS;
	}
	REAL(cuMemFree_v2)(pointer);
	uncharge(target->gpu, bytes);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
	struct target target = target_of_context();
	if (!COUNTED(target, pointer, bytes))
		return REAL(cuMemAlloc_v2)(pointer, bytes);
	if (!charge(&target, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = REAL(cuMemAlloc_v2)(pointer, bytes);
	if (result == CUDA_SUCCESS)
		return keep(&target, *pointer, bytes);
	uncharge(target.gpu, bytes);
	return result;
}

CUresult cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned bytes)
{
	struct target target = target_of_context();
	if (!COUNTED(target, pointer, bytes))
		return REAL(cuMemAlloc)(pointer, bytes);
	if (!charge(&target, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = REAL(cuMemAlloc)(pointer, bytes);
	if (result == CUDA_SUCCESS)
		return keep(&target, *pointer, bytes);
	uncharge(target.gpu, bytes);
	return result;
}

/* What cannot be counted is refused, also where it would not count. */
static bool is_beyond_quota(const struct target *target)
{
	return vgpu_quota_now()->managed_oversubscribed && target->gpu >= 0 && target->limit_bytes > 0;
}

/* Managed memory may lie on the host; it is counted where the context is, as if all of it were there. Or, where the quota
 * says so, not at all: the driver moves it out of the GPU for any other memory. */
CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags)
{
	struct target target = target_of_context();
	if (!COUNTED(target, pointer, bytes))
		return REAL(cuMemAllocManaged)(pointer, bytes, flags);
	bool counts = !is_beyond_quota(&target);
	if (counts && !charge(&target, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	atomic_store_explicit(&vgpu_state()->has_managed, true, memory_order_relaxed);
	CUresult result = REAL(cuMemAllocManaged)(pointer, bytes, flags);
	if (!counts)
		return result;
	if (result == CUDA_SUCCESS)
		return keep(&target, *pointer, bytes);
	uncharge(target.gpu, bytes);
	return result;
}

/* Either form of the call; the old one answers in 32 bits. */
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

/* Only the driver knows the pitch. It is at least the width, and the rest is reserved when it is known. */
static CUresult allocate_rows(bool old, const struct target *counted, CUdeviceptr *pointer, size_t *pitch, size_t width,
                              size_t height, unsigned element)
{
	struct target target = *counted;
	uint64_t least, bytes;
	if (__builtin_mul_overflow(width, height, &least) || !charge(&target, least))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUdeviceptr found = 0;
	size_t found_pitch = 0;
	CUresult result = ask_for_rows(old, &found, &found_pitch, width, height, element);
	if (result != CUDA_SUCCESS) {
		uncharge(target.gpu, least);
		return result;
	}
	bytes = (uint64_t)found_pitch * height;
	if (bytes > least && !charge(&target, bytes - least)) {
		REAL(cuMemFree_v2)(found);
		uncharge(target.gpu, least);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	result = keep(&target, found, bytes);
	if (result == CUDA_SUCCESS) {
		*pointer = found;
		*pitch = found_pitch;
	}
	return result;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element)
{
	struct target target = target_of_context();
	if (!COUNTED(target, pointer && pitch, width) || height == 0)
		return REAL(cuMemAllocPitch_v2)(pointer, pitch, width, height, element);
	return allocate_rows(false, &target, pointer, pitch, width, height, element);
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *pointer, unsigned *pitch, unsigned width, unsigned height, unsigned element)
{
	struct target target = target_of_context();
	CUdeviceptr found = 0;
	size_t found_pitch = 0;
	if (!COUNTED(target, pointer && pitch, width) || height == 0)
		return REAL(cuMemAllocPitch)(pointer, pitch, width, height, element);
	CUresult result = allocate_rows(true, &target, &found, &found_pitch, width, height, element);
	if (result == CUDA_SUCCESS) {
		*pointer = (CUdeviceptr_v1)found;
		*pitch = (unsigned)found_pitch;
	}
	return result;
}

CUresult cuMemFree_v2(CUdeviceptr pointer)
{
	FREE_OF(T_POINTER, cuMemFree_v2, pointer);
}

CUresult cuMemFree(CUdeviceptr_v1 pointer)
{
	FREE_OF(T_POINTER, cuMemFree, pointer);
}

/* --- contexts --- */

/* A context is gone, and with it its memory. What a pool or a handle holds belongs to no context. */
static void forget_context(struct state *state, CUcontext context)
{
	static const enum table_kind kinds[] = { T_POINTER, T_ARRAY, T_MIPMAP };
	vgpu_context_is_gone(state, context);
	for (int k = 0; k < 3; k++) {
		struct table *table = &state->tables[kinds[k]];
		mutex_lock(&state->tables_lock);
		/* Removing may move another entry into this place. */
		for (uint32_t i = 0; i < table->capacity;) {
			struct entry entry = table->entries[i];
			if (!entry.taken || entry.pooled || entry.with != (uintptr_t)context) {
				i++;
				continue;
			}
			table_remove(table, &table->entries[i]);
			uncharge(entry.gpu, entry.bytes);
		}
		mutex_unlock(&state->tables_lock);
	}
}

static CUresult destroy_context(CUcontext context, CUresult real(CUcontext))
{
	struct state *state = context ? vgpu_state() : NULL;
	if (state) {
		throttle_settle();
		throttle_context_gone(context);
	}
	if (state)
		atomic_fetch_add(&state->contexts_begun, 1);
	CUresult result = real(context);
	if (state && result == CUDA_SUCCESS)
		forget_context(state, context);
	if (state)
		atomic_fetch_add(&state->contexts_ended, 1);
	return result;
}

CUresult cuCtxDestroy(CUcontext context) { return destroy_context(context, REAL(cuCtxDestroy)); }
CUresult cuCtxDestroy_v2(CUcontext context) { return destroy_context(context, REAL(cuCtxDestroy_v2)); }

bool vgpu_primary_is_active(CUdevice device)
{
	unsigned flags;
	int active = 0;
	return REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) == CUDA_SUCCESS && active;
}

/* The primary context goes with its last user. Which context it is, only retaining it tells. */
static CUresult release_primary(CUdevice device, CUresult real(CUdevice), CUresult release(CUdevice), bool always)
{
	struct state *state = vgpu_quota_now() ? vgpu_state() : NULL;
	CUcontext primary = NULL;
	if (state && vgpu_primary_is_active(device) && REAL(cuDevicePrimaryCtxRetain)(&primary, device) == CUDA_SUCCESS)
		release(device);
	if (primary) {
		throttle_settle();
		atomic_fetch_add(&state->contexts_begun, 1);
	}
	CUresult result = real(device);
	if (result == CUDA_SUCCESS && primary && (always || !vgpu_primary_is_active(device))) {
		throttle_context_gone(primary);
		forget_context(state, primary);
		/* The device's own pool and its graphs may have lost their memory too. */
		settle_pools(state, -1, false);
		settle_graphs(state, vgpu_quota_now());
	}
	if (primary)
		atomic_fetch_add(&state->contexts_ended, 1);
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
