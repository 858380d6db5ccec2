/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Memory pools. They are charged with their reserved memory on the GPU, used or not: after each call, the difference to
 * the previous charge. A pool's block represents it in the tables, and outlives it.
 *
 * Functions with `_held` require account->pools. The others take it.
 */
#ifndef POOL_BLOCKS_H
#define POOL_BLOCKS_H

#include "account/account.h"
#include "base/likely.h"

bool pool_reserved(CUmemoryPool, uint64_t *bytes);
/* *block is a copy. False if the pool is unknown. */
bool pool_block_held(struct account *, CUmemoryPool, struct entry *block);
/* False without memory for the entry. */
bool pool_add_held(struct account *, CUmemoryPool, int gpu, CUdevice);
/* Set the block's charge to `bytes`. False if it does not fit, without a change. */
bool pool_charge_held(struct account *, const struct entry *block, uint64_t bytes, uint64_t limit);
/* Set the pool's charge to its reserved memory. */
void pool_settle_held(struct account *, CUmemoryPool);
void pool_trim_held(CUmemoryPool, uint64_t keep);
/* Mark the pool as destroyed. It is charged until its last pointer is freed. */
void pool_gone_held(struct account *, CUmemoryPool);

/* Settle all pools of the GPU (-1 for any). The growth of `growing` is not charged yet, because it may not fit. */
void settle_pools_held(struct account *, int gpu, bool trim, CUmemoryPool growing);
void settle_pools(struct account *, int gpu, bool trim);
/* Release account->pools, and settle what pools_have_given_back recorded meanwhile. */
void pools_leave(struct account *);
void pools_settle_given_back(struct account *);	/* slow path, with pools */
/* Settle pools from which the driver may have released unused memory, as it does when the process waits for the GPU.
 * The memory stops counting before this returns, or when another thread, which may be in a driver call that waits
 * for this thread, releases account->pools. In a callback inside such a call of this thread, do nothing: a pool may
 * have grown without a charge, and released memory counts until the next call. */
static inline void pools_have_given_back(struct account *account)
{
	if (UNLIKELY(atomic_load_explicit(&account->has_pools, memory_order_relaxed)))
		pools_settle_given_back(account);
}

/* Handle a freed pointer of a pool. */
void pool_pointer_freed(struct account *, uint64_t block);

#endif
