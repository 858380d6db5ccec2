/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Hooks of stream-ordered memory.
 *
 * If a request exceeds the unused memory of a pool, the pool grows by at least the difference. Before the driver call,
 * check that this difference fits. If the pool grew by more than fits, release the growth and let the call fail with
 * out of memory. account->pools is held the whole time, so that the growth can be attributed to one thread.
 */
#include "account/holdings.h"
#include "account/pool_blocks.h"
#include "account/sums.h"
#include "driver/reals.h"
#include "driver/streams.h"
#include "process/state.h"
#include "process/target.h"

/* Return the target GPU of a pool that the process did not create: a device's default pool, or an imported pool, which
 * is not charged here. */
static struct target target_of_pool(struct account *account, CUmemoryPool pool)
{
	mutex_lock(&account->tables.lock);
	struct entry *known = table_find(&account->tables.table[T_POOL], (uintptr_t)pool);
	CUdevice of = known ? (CUdevice)known->count : -1;
	mutex_unlock(&account->tables.lock);
	if (of >= 0)
		return target_of_device(of);
	int devices = 0;
	REAL(cuDeviceGetCount)(&devices);
	for (CUdevice device = 0; device < devices && device < DEVICES; device++) {
		CUmemoryPool own = NULL;
		if (REAL(cuDeviceGetDefaultMemPool)(&own, device) == CUDA_SUCCESS && own == pool)
			return target_of_device(device);
	}
	return (struct target){ .gpu = NOT_COUNTED };
}

/* A request in the form that all these hooks share. In a capturing stream, nothing is allocated during the call. */
struct request {
	CUdeviceptr *pointer;
	size_t bytes;
	CUmemoryPool pool;		/* NULL: the device's current pool */
	CUstream stream;
	bool per_thread, from_pool;
};

static CUresult ask(const struct request *r)
{
	if (r->from_pool)
		return r->per_thread ? REAL(cuMemAllocFromPoolAsync_ptsz)(r->pointer, r->bytes, r->pool, r->stream)
		                     : REAL(cuMemAllocFromPoolAsync)(r->pointer, r->bytes, r->pool, r->stream);
	return r->per_thread ? REAL(cuMemAllocAsync_ptsz)(r->pointer, r->bytes, r->stream)
	                     : REAL(cuMemAllocAsync)(r->pointer, r->bytes, r->stream);
}

static void hand_back(const struct request *r)
{
	if (r->per_thread)
		REAL(cuMemFreeAsync_ptsz)(*r->pointer, r->stream);
	else
		REAL(cuMemFreeAsync)(*r->pointer, r->stream);
}

/* Check whether the pool's minimum growth for `bytes` more fits, without reserving it. */
static bool find_room(struct account *account, const struct target *target, CUmemoryPool pool, uint64_t bytes)
{
	uint64_t used = 0, reserved = 0;
	if (REAL(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used) != CUDA_SUCCESS)
		used = 0;
	if (!pool_reserved(pool, &reserved))
		reserved = 0;
	uint64_t unused = reserved > used ? reserved - used : 0;
	return bytes <= unused || (is_below_waterline(target, bytes - unused)
		&& tenant_has_room(&account->tenant, target->gpu, bytes - unused, target->limit_bytes));
}

static bool keep(struct account *account, CUdeviceptr pointer, uint64_t id, int gpu)
{
	struct entry entry = { .pooled = true, .with = id, .gpu = (int16_t)gpu };
	if (!remember(account, T_POINTER, pointer, &entry))
		return false;
	mutex_lock(&account->tables.lock);
	struct entry *block = table_find(&account->tables.table[T_BLOCK], id);
	if (block)
		block->count++;
	mutex_unlock(&account->tables.lock);
	return true;
}

static bool charge_growth(struct account *account, const struct request *r, const struct target *target)
{
	struct entry block;
	uint64_t bytes;
	return !pool_reserved(r->pool, &bytes) || !pool_block_held(account, r->pool, &block)
	    || pool_charge_held(account, &block, bytes, target->limit_bytes);
}

/* Allocate from a pool. Requires account->pools. */
static CUresult allocate(struct account *account, const struct request *r, const struct target *target)
{
	struct entry block;
	uint64_t before = 0;
	if (!pool_block_held(account, r->pool, &block)
	    && !(pool_add_held(account, r->pool, target->gpu, target->device) && pool_block_held(account, r->pool, &block)))
		return CUDA_ERROR_OUT_OF_MEMORY;
	pool_reserved(r->pool, &before);
	if (!find_room(account, target, r->pool, r->bytes)) {
		settle_pools_held(account, target->gpu, true, NULL);
		before = 0;
		pool_reserved(r->pool, &before);
		if (!find_room(account, target, r->pool, r->bytes))
			return CUDA_ERROR_OUT_OF_MEMORY;
	}
	CUresult result = ask(r);
	if (result != CUDA_SUCCESS)
		return result;
	bool fits = charge_growth(account, r, target);
	if (!fits) {
		/* Releasing unused memory of this and other pools may make room. */
		settle_pools_held(account, target->gpu, true, r->pool);
		fits = charge_growth(account, r, target);
	}
	if (fits && keep(account, *r->pointer, block.key, target->gpu))
		return CUDA_SUCCESS;
	hand_back(r);
	*r->pointer = 0;
	pool_trim_held(r->pool, before);
	pool_settle_held(account, r->pool);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult allocate_async(struct request *r)
{
	if (!vgpu_quota() || !r->pointer || r->bytes == 0 || vgpu_is_capturing(r->stream, r->per_thread))
		return ask(r);
	struct account *account = vgpu_account();
	struct target target = r->from_pool ? target_of_pool(account, r->pool) : target_of_stream(r->stream);
	if (target.gpu == NO_PLACE)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (target.gpu < 0 || (!r->from_pool && REAL(cuDeviceGetMemPool)(&r->pool, target.device) != CUDA_SUCCESS))
		return ask(r);
	recursive_lock(&account->pools);
	CUresult result = allocate(account, r, &target);
	pools_leave(account);
	if (result == CUDA_ERROR_OUT_OF_MEMORY)
		tenant_refused(&account->tenant, target.gpu);
	return result;
}

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
	return allocate_async(&(struct request){ .pointer = pointer, .bytes = bytes, .stream = stream });
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
	return allocate_async(&(struct request){ .pointer = pointer, .bytes = bytes, .stream = stream, .per_thread = true });
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	return allocate_async(&(struct request){ .pointer = pointer, .bytes = bytes, .pool = pool, .stream = stream, .from_pool = true });
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	return allocate_async(&(struct request){ .pointer = pointer, .bytes = bytes, .pool = pool, .stream = stream,
	                                         .from_pool = true, .per_thread = true });
}

/* --- freeing --- */

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
	struct freeing freeing = freeing_begins(vgpu_account(), T_POINTER, pointer);
	return freeing_ends(&freeing, REAL(cuMemFreeAsync)(pointer, stream));
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream)
{
	struct freeing freeing = freeing_begins(vgpu_account(), T_POINTER, pointer);
	return freeing_ends(&freeing, REAL(cuMemFreeAsync_ptsz)(pointer, stream));
}

/* --- pools --- */

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *what)
{
	struct target target = { .gpu = NOT_COUNTED };
	if (pool && what && what->location.type == CU_MEM_LOCATION_TYPE_DEVICE)
		target = target_of_device(what->location.id);
	/* If no accounting is possible, nothing was allocated. */
	if (target.gpu == NO_PLACE)
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = REAL(cuMemPoolCreate)(pool, what);
	if (result == CUDA_SUCCESS && target.gpu >= 0) {
		struct account *account = vgpu_account();
		recursive_lock(&account->pools);
		pool_add_held(account, *pool, target.gpu, target.device);
		pools_leave(account);
	}
	return result;
}

/* Destroy the pool while the lock is held, so that no other thread asks the driver about a destroyed pool. */
CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	struct account *account = vgpu_account();
	if (!account)
		return REAL(cuMemPoolDestroy)(pool);
	recursive_lock(&account->pools);
	CUresult result = REAL(cuMemPoolDestroy)(pool);
	if (result == CUDA_SUCCESS)
		pool_gone_held(account, pool);
	pools_leave(account);
	return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	CUresult result = REAL(cuMemPoolTrimTo)(pool, keep);
	struct account *account = vgpu_account();
	if (account) {
		recursive_lock(&account->pools);
		pool_settle_held(account, pool);
		pools_leave(account);
	}
	return result;
}
