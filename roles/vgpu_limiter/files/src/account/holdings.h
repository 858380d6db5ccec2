/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The process's allocations: table entries with the charged bytes.
 */
#ifndef HOLDINGS_H
#define HOLDINGS_H

#include "account/charge.h"

/* Record an allocation by the driver. Return false if there is no memory for the entry. */
bool remember(struct account *, enum table_kind, uint64_t key, const struct entry *);
/* Record an allocation in the thread's context, charged to the target. Return false if there is no memory for the
 * entry. */
bool remember_allocation(struct account *, enum table_kind, uint64_t key, const struct target *, uint64_t bytes);

/* Call freeing_begins before and freeing_ends after the driver function that frees the key. During the driver call, the
 * entry is not in its table. Nothing is recorded if account is NULL. Returns the driver's result. */
struct freeing {
	struct account *account;
	enum table_kind kind;
	bool known;
	struct entry entry;
};
struct freeing freeing_begins(struct account *, enum table_kind, uint64_t key);
CUresult freeing_ends(const struct freeing *, CUresult);

/* Forget a destroyed context and its memory. Memory of pools and handles belongs to no context. */
void forget_allocations_of(struct account *, CUcontext);

#endif
