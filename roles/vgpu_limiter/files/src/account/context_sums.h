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
uint64_t tenant_context_cost(struct tenant *, int gpu);	/* cost of one context, 0 if unknown */
void tenant_learn_context(struct tenant *, int gpu, uint64_t bytes);	/* keeps the lowest value */
/* Replace the reservation by NVML's value for this process beyond its allocations. */
void tenant_set_context(struct tenant *, int gpu, uint64_t bytes);
/* The same for another process if it still owns the slot. Its contexts count as at least `bytes`. */
void tenant_raise_context(struct tenant *, uint32_t slot, uint32_t nonce, int gpu, uint64_t bytes);
/* Charge processes without a slot, in a slot locked by the agent. */
void tenant_set_others(struct tenant *, uint32_t slot, uint32_t nonce, int gpu, uint64_t bytes);

#endif
