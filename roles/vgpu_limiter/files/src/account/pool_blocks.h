/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * What memory pools hold. That is what they have reserved on the GPU, used or not, so that is what is charged: after each
 * call, the difference to what was charged before. A pool's block stands for it in the tables, and outlives it.
 *
 * Functions with `_held` are called with account->pools held, the others take it.
 */
#ifndef POOL_BLOCKS_H
#define POOL_BLOCKS_H

#include "account/account.h"
#include "base/likely.h"

bool pool_reserved(CUmemoryPool, uint64_t *bytes);
/* *block is a copy. False: the pool is not known. */
bool pool_block_held(struct account *, CUmemoryPool, struct entry *block);
/* False: no memory for the entry. */
bool pool_add_held(struct account *, CUmemoryPool, int gpu, CUdevice);
/* What is charged for the block becomes `bytes`; false: it does not fit, and nothing has changed. */
bool pool_charge_held(struct account *, const struct entry *block, uint64_t bytes, uint64_t limit);
/* The pool's charge becomes what it has reserved. */
void pool_settle_held(struct account *, CUmemoryPool);
void pool_trim_held(CUmemoryPool, uint64_t keep);
/* The pool is destroyed: it is paid for until its last pointer is freed. */
void pool_gone_held(struct account *, CUmemoryPool);

/* All pools of the GPU (-1: of all). What `growing` has come to hold is not charged yet: that may not fit. */
void settle_pools_held(struct account *, int gpu, bool trim, CUmemoryPool growing);
void settle_pools(struct account *, int gpu, bool trim);
/* Leaves account->pools, and settles what pools_have_given_back was told of meanwhile. */
void pools_leave(struct account *);
void pools_settle_given_back(struct account *);	/* what follows, where there are pools */
/* The driver may have taken memory from pools that they had reserved and did not need, as it does when the process waits for the
 * GPU. It counts no more when this returns, or when another thread has left account->pools: that may be within a call to the
 * driver, which may wait for this thread. In a callback within such a call of this thread nothing is done: there a pool may have
 * grown that is not charged yet, and what was given back counts until the next call. */
static inline void pools_have_given_back(struct account *account)
{
	if (UNLIKELY(atomic_load_explicit(&account->has_pools, memory_order_relaxed)))
		pools_settle_given_back(account);
}

/* A pointer of a pool is free. */
void pool_pointer_freed(struct account *, uint64_t block);

#endif
