/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Processes that ended without freeing what they had: their slots are emptied before memory is refused, or shown.
 */
#ifndef DEAD_H
#define DEAD_H

#include "account/tenant.h"

/* Takes out of the sums what a slot holds, and frees it. With the region's lock held. */
void tenant_clear_slot(struct region *, struct slot *);
/* Empties the slots of all dead processes, with the region's lock held: for a moment when there are few. */
void tenant_strike_off_all(struct tenant *);
/* Empties the slots of those that hold something on the GPU (-1: of all). Takes the region's lock. */
void tenant_strike_off(struct tenant *, int gpu);

#endif
