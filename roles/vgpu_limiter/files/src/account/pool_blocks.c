/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Charge memory pools.
 */
#include "account/pool_blocks.h"

#include "account/sums.h"
#include "driver/reals.h"
#include "driver/streams.h"

bool pool_reserved(CUmemoryPool pool, uint64_t *bytes)
{
	return REAL(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, bytes) == CUDA_SUCCESS;
}

bool pool_block_held(struct account *account, CUmemoryPool pool, struct entry *block)
{
	mutex_lock(&account->tables.lock);
	struct entry *known = table_find(&account->tables.table[T_POOL], (uintptr_t)pool);
	struct entry *there = known ? table_find(&account->tables.table[T_BLOCK], known->with) : NULL;
	if (there)
		*block = *there;
	mutex_unlock(&account->tables.lock);
	return there != NULL;
}

bool pool_add_held(struct account *account, CUmemoryPool pool, int gpu, CUdevice device)
{
	mutex_lock(&account->tables.lock);
	uint64_t id = ++account->tables.last_block;
	struct entry *block = table_add(&account->tables.table[T_BLOCK], id);
	struct entry *known = block ? table_add(&account->tables.table[T_POOL], (uintptr_t)pool) : NULL;
	if (known) {
		*block = (struct entry){ .key = id, .taken = true, .pooled = true, .with = (uintptr_t)pool, .gpu = (int16_t)gpu };
		known->with = id;
		known->count = (uint32_t)device;
		atomic_store_explicit(&account->has_pools, true, memory_order_relaxed);
	} else if (block) {
		table_remove(&account->tables.table[T_BLOCK], block);
	}
	mutex_unlock(&account->tables.lock);
	return known != NULL;
}

bool pool_charge_held(struct account *account, const struct entry *block, uint64_t bytes, uint64_t limit)
{
	if (bytes > block->bytes && !tenant_reserve(&account->tenant, block->gpu, bytes - block->bytes, limit))
		return false;
	tenant_note_peak(&account->tenant, block->gpu);
	if (bytes < block->bytes)
		tenant_give_back(&account->tenant, block->gpu, block->bytes - bytes);
	mutex_lock(&account->tables.lock);
	struct entry *there = table_find(&account->tables.table[T_BLOCK], block->key);
	if (there)
		there->bytes = bytes;
	mutex_unlock(&account->tables.lock);
	return true;
}

void pool_settle_held(struct account *account, CUmemoryPool pool)
{
	struct entry block;
	uint64_t bytes;
	if (pool_reserved(pool, &bytes) && pool_block_held(account, pool, &block))
		pool_charge_held(account, &block, bytes, UINT64_MAX);
}

void pool_trim_held(CUmemoryPool pool, uint64_t keep)
{
	int mode = relax_capture();
	REAL(cuMemPoolTrimTo)(pool, keep);
	restore_capture(mode);
}

void settle_pools_held(struct account *account, int gpu, bool trim, CUmemoryPool growing)
{
	struct table *pools = &account->tables.table[T_POOL];
	/* Only the holder of account->pools changes this table. The holder may be a callback inside a driver call, so
	 * read the entry again after each driver call. Never call the driver while tables.lock is held. */
	for (uint32_t i = 0; i < pools->capacity; i++) {
		struct entry block;
		CUmemoryPool pool = (CUmemoryPool)(uintptr_t)pools->entries[i].key;
		if (!pools->entries[i].taken || !pool_block_held(account, pool, &block) || (gpu >= 0 && block.gpu != gpu))
			continue;
		if (trim)
			pool_trim_held(pool, 0);
		if (pool != growing)
			pool_settle_held(account, pool);
	}
}

/* A thread sets the flag before it tries to take the lock, and the holder reads the flag after it releases the lock. So
 * one of them always settles the pools. */
static void settle_given_back(struct account *account)
{
	atomic_thread_fence(memory_order_seq_cst);
	while (atomic_load(&account->pools_gave_back) && recursive_try_lock(&account->pools)) {
		if (atomic_exchange(&account->pools_gave_back, false))
			settle_pools_held(account, -1, false, NULL);
		recursive_unlock(&account->pools);
		atomic_thread_fence(memory_order_seq_cst);
	}
}

void pools_leave(struct account *account)
{
	recursive_unlock(&account->pools);
	settle_given_back(account);
}

void pools_settle_given_back(struct account *account)
{
	if (recursive_is_own(&account->pools))
		return;
	atomic_store(&account->pools_gave_back, true);
	settle_given_back(account);
}

void settle_pools(struct account *account, int gpu, bool trim)
{
	recursive_lock(&account->pools);
	settle_pools_held(account, gpu, trim, NULL);
	pools_leave(account);
}

/* Requires account->pools. A destroyed pool stays charged until its last pointer is freed. */
static void drop_orphan(struct account *account, uint64_t id)
{
	struct entry block = { 0 };
	mutex_lock(&account->tables.lock);
	struct entry *there = table_find(&account->tables.table[T_BLOCK], id);
	if (there && there->with == 0 && there->count == 0) {
		block = *there;
		table_remove(&account->tables.table[T_BLOCK], there);
	}
	mutex_unlock(&account->tables.lock);
	if (block.bytes)
		tenant_give_back(&account->tenant, block.gpu, block.bytes);
}

void pool_pointer_freed(struct account *account, uint64_t id)
{
	CUmemoryPool pool = NULL;
	recursive_lock(&account->pools);
	mutex_lock(&account->tables.lock);
	struct entry *block = table_find(&account->tables.table[T_BLOCK], id);
	if (block) {
		block->count -= block->count > 0;
		pool = (CUmemoryPool)(uintptr_t)block->with;
	}
	mutex_unlock(&account->tables.lock);
	if (pool)
		pool_settle_held(account, pool);
	else
		drop_orphan(account, id);
	pools_leave(account);
}

void pool_gone_held(struct account *account, CUmemoryPool pool)
{
	struct entry known;
	if (!take_out(&account->tables, T_POOL, (uintptr_t)pool, &known))
		return;
	mutex_lock(&account->tables.lock);
	struct entry *block = table_find(&account->tables.table[T_BLOCK], known.with);
	if (block)
		block->with = 0;
	mutex_unlock(&account->tables.lock);
	drop_orphan(account, known.with);
}
