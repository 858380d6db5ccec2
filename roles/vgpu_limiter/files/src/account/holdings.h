/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * What the process holds: entries of the tables with their charge.
 */
#ifndef HOLDINGS_H
#define HOLDINGS_H

#include "account/charge.h"

/* An entry for what the driver has given. False: no memory for it. */
bool remember(struct account *, enum table_kind, uint64_t key, const struct entry *);
/* An entry for an allocation in the thread's context that is charged to the target. False: no memory for it. */
bool remember_allocation(struct account *, enum table_kind, uint64_t key, const struct target *, uint64_t bytes);

/* Around the driver's function that frees the key: the entry is out of its table while the driver is asked. account NULL: nothing
 * is kept. Returns the driver's answer. */
struct freeing {
	struct account *account;
	enum table_kind kind;
	bool known;
	struct entry entry;
};
struct freeing freeing_begins(struct account *, enum table_kind, uint64_t key);
CUresult freeing_ends(const struct freeing *, CUresult);

/* A context is gone, and with it its memory. What a pool or a handle holds belongs to no context. */
void forget_allocations_of(struct account *, CUcontext);

#endif
