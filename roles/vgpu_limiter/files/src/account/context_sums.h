/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Memory of contexts in the tenant's region. Each function takes the region's lock.
 */
#ifndef CONTEXT_SUMS_H
#define CONTEXT_SUMS_H

#include "account/tenant.h"

bool tenant_reserve_context(struct tenant *, int gpu, uint64_t bytes, uint64_t limit);
void tenant_give_back_context(struct tenant *, int gpu, uint64_t bytes);
uint64_t tenant_context_cost(struct tenant *, int gpu);	/* cost of one context in bytes, 0 if unknown */
void tenant_learn_context(struct tenant *, int gpu, uint64_t bytes);	/* record a cost. The lowest recorded value is kept */
/* Replace the reservation with the memory that NVML reports for this process beyond its allocations. */
void tenant_set_context(struct tenant *, int gpu, uint64_t bytes);
/* Raise another process's value if it still owns the slot, so that at least `bytes` are charged for its contexts. */
void tenant_raise_context(struct tenant *, uint32_t slot, uint32_t nonce, int gpu, uint64_t bytes);
/* Charge the memory of processes without a slot, for which the agent holds a slot. */
void tenant_set_others(struct tenant *, uint32_t slot, uint32_t nonce, int gpu, uint64_t bytes);

#endif
