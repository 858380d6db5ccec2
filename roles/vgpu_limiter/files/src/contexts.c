/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Contexts take memory that no allocation shows: some hundred MiB each on large GPUs, and more where their limits are
 * raised. What one costs is learned from NVML, kept in the tenant's region by GPU, and reserved before the next is made.
 * NVML's figure for the process takes the place of what was reserved, once a second (nvml.c). Where NVML does not name
 * this process, what was reserved stays charged.
 */
#include "allocations.h"
#include "tenant.h"

/* What is being made, with what was reserved for it. */
struct making { struct target target; uint64_t bytes; };

static void reserve_as_pending(struct state *state, int gpu, uint64_t bytes)
{
	atomic_fetch_add(&state->context_pending[gpu], bytes);
	atomic_fetch_add(&state->context_charged[gpu], bytes);
}

static void give_back(struct state *state, int gpu, uint64_t charged, uint64_t held)
{
	atomic_fetch_sub(&state->context_charged[gpu], charged);
	if (held)
		tenant_give_back_context(state, gpu, held);
}

static bool reserve(const struct target *target, uint64_t bytes)
{
	struct state *state = vgpu_state();
	if (bytes == 0)
		return true;
	reserve_as_pending(state, target->gpu, bytes);
	if (tenant_reserve_context(state, target->gpu, bytes, target->limit_bytes))
		return true;
	settle_pools(state, target->gpu, true);
	if (tenant_reserve_context(state, target->gpu, bytes, target->limit_bytes))
		return true;
	atomic_fetch_sub(&state->context_pending[target->gpu], bytes);
	atomic_fetch_sub(&state->context_charged[target->gpu], bytes);
	tenant_refused(state, target->gpu);
	return false;
}

static void drop_reservation(const struct making *m)
{
	struct state *state = vgpu_state();
	if (m->bytes == 0)
		return;
	atomic_fetch_sub(&state->context_pending[m->target.gpu], m->bytes);
	give_back(state, m->target.gpu, m->bytes, m->bytes);
}

/* False: out of memory. Not before a process's second context is NVML asked at once, if nothing is known yet: programs
 * of one context start without it. */
static bool admit(CUdevice device, struct making *m)
{
	*m = (struct making){ .target = target_of_device(device) };
	if (m->target.gpu < 0 || m->target.limit_bytes == UINT64_MAX)
		return true;
	struct state *state = vgpu_state();
	m->bytes = tenant_context_cost(state, m->target.gpu);
	if (m->bytes == 0 && atomic_load(&state->contexts[m->target.gpu]) > 0) {
		tenant_learn_now(state, vgpu_quota_now());
		m->bytes = tenant_context_cost(state, m->target.gpu);
	}
	if (!reserve(&m->target, m->bytes))
		return false;
	atomic_fetch_add(&state->contexts_begun, 1);
	return true;
}

/* The driver has answered. A primary context that two threads have made at once is one. */
static CUresult made(const struct making *m, CUresult result, CUcontext context)
{
	struct state *state = vgpu_state();
	if (m->target.gpu < 0 || m->target.limit_bytes == UINT64_MAX)
		return result;
	bool is_new = false;
	if (result == CUDA_SUCCESS && context) {
		mutex_lock(&state->tables_lock);
		is_new = !table_find(&state->tables[T_CONTEXT], (uintptr_t)context);
		struct entry *entry = is_new ? table_add(&state->tables[T_CONTEXT], (uintptr_t)context) : NULL;
		if (entry) {
			entry->bytes = m->bytes;
			entry->gpu = (int16_t)m->target.gpu;
		}
		is_new = entry != NULL;
		mutex_unlock(&state->tables_lock);
	}
	if (is_new) {
		atomic_fetch_add(&state->contexts[m->target.gpu], 1);
		atomic_fetch_sub(&state->context_pending[m->target.gpu], m->bytes);
		tenant_note_peak(state, m->target.gpu);
	} else {
		drop_reservation(m);
	}
	atomic_fetch_add(&state->contexts_ended, 1);
	return result;
}

void vgpu_context_is_gone(struct state *state, CUcontext context)
{
	struct entry entry;
	if (!take_out(state, T_CONTEXT, (uintptr_t)context, &entry))
		return;
	/* The first of all was made before its cost was known: what NVML says of it goes too. */
	uint64_t cost = tenant_context_cost(state, entry.gpu);
	atomic_fetch_sub(&state->contexts[entry.gpu], 1);
	give_back(state, entry.gpu, entry.bytes, entry.bytes > cost ? entry.bytes : cost);
}

#define CREATE(context, device, call) do { \
	struct making m; \
	if (!admit(device, &m)) \
		return CUDA_ERROR_OUT_OF_MEMORY; \
	CUresult result = call; \
	return made(&m, result, result == CUDA_SUCCESS && (context) ? *(context) : NULL); \
} while (0)

CUresult cuCtxCreate(CUcontext *context, unsigned flags, CUdevice device)
{
	CREATE(context, device, REAL(cuCtxCreate)(context, flags, device));
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
	CREATE(context, device, REAL(cuCtxCreate_v2)(context, flags, device));
}

CUresult cuCtxCreate_v3(CUcontext *context, void *affinity, int count, unsigned flags, CUdevice device)
{
	CREATE(context, device, REAL(cuCtxCreate_v3)(context, affinity, count, flags, device));
}

CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned flags, CUdevice device)
{
	CREATE(context, device, REAL(cuCtxCreate_v4)(context, parameters, flags, device));
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	if (!vgpu_quota() || vgpu_primary_is_active(device))
		return REAL(cuDevicePrimaryCtxRetain)(context, device);
	CREATE(context, device, REAL(cuDevicePrimaryCtxRetain)(context, device));
}

/* --- limits --- */

/* What the context's memory for a limit comes to. The stack is there once for each thread that the GPU can hold. */
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

/* Adds to what the context costs, or takes off it: no more than was added. */
static void change_context(struct state *state, int gpu, uint64_t before, uint64_t after)
{
	CUcontext context = NULL;
	uint64_t less = 0;
	REAL(cuCtxGetCurrent)(&context);
	mutex_lock(&state->tables_lock);
	struct entry *entry = table_find(&state->tables[T_CONTEXT], (uintptr_t)context);
	if (entry && after > before) {
		entry->bytes += after - before;
	} else if (entry) {
		less = before - after < entry->bytes ? before - after : entry->bytes;
		entry->bytes -= less;
	}
	mutex_unlock(&state->tables_lock);
	/* Of a context from before the quota nothing is kept: NVML knows it where it can. */
	if (!entry && after > before)
		less = after - before;
	if (less)
		give_back(state, gpu, less, less);
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
	m.bytes = wanted > before ? wanted - before : 0;
	if (!reserve(&m.target, m.bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = REAL(cuCtxSetLimit)(limit, value);
	if (result != CUDA_SUCCESS) {
		drop_reservation(&m);
		return result;
	}
	struct state *state = vgpu_state();
	if (m.bytes)
		atomic_fetch_sub(&state->context_pending[m.target.gpu], m.bytes);
	change_context(state, m.target.gpu, before, wanted);
	tenant_note_peak(state, m.target.gpu);
	return result;
}
