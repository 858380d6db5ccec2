/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Clear the slots of processes that ended without freeing their memory. Call this before memory is refused or reported.
 */
#ifndef DEAD_H
#define DEAD_H

#include "account/tenant.h"

/* Remove a slot from the sums and free it. Requires the region's lock. */
void tenant_clear_slot(struct region *, struct slot *);
/* Clear all dead processes' slots. Requires the region's lock, and holds it only briefly if few processes are dead. */
void tenant_strike_off_all(struct tenant *);
/* Clear dead processes' slots with memory on the GPU (-1 for any GPU). Takes the region's lock. */
void tenant_strike_off(struct tenant *, int gpu);

#endif
