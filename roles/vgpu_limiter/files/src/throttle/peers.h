/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The tenant's other GPUs, whose work may wait for work here and vice versa. Requires the throttle's lock.
 */
#ifndef PEERS_H
#define PEERS_H

#include "throttle/gpus.h"

#define HURRY_NS (4 * NS_PER_MS)	/* after this time an overdue peer is helped, even by a process that is not ahead */

/* Read the other GPUs' seats for the GPU at index `own` of the quota. `begins`: its next turn has not begun. */
void look_at_peers(struct throttle *, int own, bool begins, int64_t now);

#endif
