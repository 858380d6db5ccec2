/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The lock of the tenant's region, and whether those that have a slot live. formats/region.h says how it survives kill -9.
 */
#ifndef REGION_LOCK_H
#define REGION_LOCK_H

#include "account/tenant.h"

#define NONCE_MASK UINT32_C(0xfffff)
/* Held with tenant->memory, so by one thread of a process. */
void region_lock(struct tenant *);
void region_unlock(struct tenant *);
/* The file that is mapped, or -1: it is gone, or another has its name (the tenant was removed and made
 * anew while this process ran). Locks in that one say nothing of the slots here. */
int region_reopen(const struct tenant *);
bool region_slot_is_dead(const struct tenant *, int descriptor, uint32_t slot);

#endif
