/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * What contexts take, in the tenant's region. Each function takes the region's lock itself.
 */
#ifndef CONTEXT_SUMS_H
#define CONTEXT_SUMS_H

#include "account/tenant.h"

bool tenant_reserve_context(struct tenant *, int gpu, uint64_t bytes, uint64_t limit);
void tenant_give_back_context(struct tenant *, int gpu, uint64_t bytes);
uint64_t tenant_context_cost(struct tenant *, int gpu);	/* of one, 0: not known yet */
void tenant_learn_context(struct tenant *, int gpu, uint64_t bytes);	/* the least that was ever seen is kept */
/* What NVML says of this process beyond its allocations, in place of what was reserved. */
void tenant_set_context(struct tenant *, int gpu, uint64_t bytes);
/* The same of another process, if the slot is that process's still: its contexts count `bytes` at least. */
void tenant_raise_context(struct tenant *, uint32_t slot, uint32_t nonce, int gpu, uint64_t bytes);
/* What processes without a slot have, in a slot whose lock the agent has. */
void tenant_set_others(struct tenant *, uint32_t slot, uint32_t nonce, int gpu, uint64_t bytes);

#endif
