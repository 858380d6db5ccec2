/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Processes that ended without freeing their memory. Their slots are cleared before memory is refused or reported.
 */
#ifndef DEAD_H
#define DEAD_H

#include "account/tenant.h"

/* Remove a slot from the sums and free it. Requires the region's lock. */
void tenant_clear_slot(struct region *, struct slot *);
/* Clear the slots of all dead processes. Requires the region's lock, briefly if few are dead. */
void tenant_strike_off_all(struct tenant *);
/* Clear slots of dead processes with memory on the GPU (-1 for any). Takes the region's lock. */
void tenant_strike_off(struct tenant *, int gpu);

#endif
