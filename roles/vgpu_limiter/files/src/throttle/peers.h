/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The tenant's other GPUs: work there may wait for work here, and the other way round. With the throttle's lock held.
 */
#ifndef PEERS_H
#define PEERS_H

#include "throttle/gpus.h"

#define HURRY_NS (4 * NS_PER_MS)	/* after which an overdue peer is helped, also by one that is not behind it */

/* Looks at the other GPUs' seats, for the GPU at `own` in the quota. `begins`: its next turn has not begun. */
void look_at_peers(struct throttle *, int own, bool begins, int64_t now);

#endif
