/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The lock of the tenant's region, and checks whether the owners of slots are alive. formats/region.h describes how the
 * lock survives `kill -9`.
 */
#ifndef REGION_LOCK_H
#define REGION_LOCK_H

#include "account/tenant.h"

#define NONCE_MASK UINT32_C(0xfffff)
/* Requires tenant->memory, so one thread per process. */
void region_lock(struct tenant *);
void region_unlock(struct tenant *);
/* Return a descriptor of the mapped file, or -1 if its path leads to no file or to another one, because the tenant was
 * recreated while this process ran. A lock in the new file does not protect slots in the mapped file. */
int region_reopen(const struct tenant *);
bool region_slot_is_dead(const struct tenant *, int descriptor, uint32_t slot);

#endif
