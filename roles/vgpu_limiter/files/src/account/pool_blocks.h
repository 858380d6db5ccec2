/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Memory pools. A pool is charged with its reserved memory on the GPU, whether this memory is used or not. After each
 * call, the difference to the previous charge is added or subtracted. In the tables, a pool is represented by its
 * block. The block outlives the pool.
 *
 * Functions with `_held` in their name require account->pools. The others take this lock.
 */
#ifndef POOL_BLOCKS_H
#define POOL_BLOCKS_H

#include "account/account.h"
#include "base/likely.h"

bool pool_reserved(CUmemoryPool, uint64_t *bytes);
/* Copy the pool's block to *block. Return false if the pool is unknown. */
bool pool_block_held(struct account *, CUmemoryPool, struct entry *block);
/* Add a pool. Return false if there is no memory for the entry. */
bool pool_add_held(struct account *, CUmemoryPool, int gpu, CUdevice);
/* Set the block's charge to `bytes`. If this does not fit, return false and change nothing. */
bool pool_charge_held(struct account *, const struct entry *block, uint64_t bytes, uint64_t limit);
/* Set the pool's charge to its reserved memory. */
void pool_settle_held(struct account *, CUmemoryPool);
void pool_trim_held(CUmemoryPool, uint64_t keep);
/* Mark the pool as destroyed. The pool stays charged until its last pointer is freed. */
void pool_gone_held(struct account *, CUmemoryPool);

/* Settle all pools of the GPU (-1 for any GPU). The growth of the pool `growing` is not charged yet, because it may not
 * fit. */
void settle_pools_held(struct account *, int gpu, bool trim, CUmemoryPool growing);
void settle_pools(struct account *, int gpu, bool trim);
/* Release account->pools. Then settle the pools if pools_have_given_back requested it while the lock was held. */
void pools_leave(struct account *);
void pools_settle_given_back(struct account *);	/* slow path if pools exist */
/* Settle pools after the driver may have released their unused memory, as it does when the process waits for the GPU.
 * Released memory is then no longer charged when the function returns. If another thread holds account->pools, that
 * thread settles the pools when it releases the lock, because it may be in a driver call that waits for this thread.
 * In a callback inside a driver call of this thread, do nothing: a pool may have grown without a charge. Released
 * memory then stays charged until the next call. */
static inline void pools_have_given_back(struct account *account)
{
	if (UNLIKELY(atomic_load_explicit(&account->has_pools, memory_order_relaxed)))
		pools_settle_given_back(account);
}

/* Handle a freed pointer that belonged to a pool. */
void pool_pointer_freed(struct account *, uint64_t block);

#endif
