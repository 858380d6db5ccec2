/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Peers are the tenant's other GPUs. Work there may wait for work here, and work here may wait for work there. Requires
 * the throttle's lock.
 */
#ifndef PEERS_H
#define PEERS_H

#include "throttle/gpus.h"

#define HURRY_NS (4 * NS_PER_MS)	/* if a peer is late for this long, help it even if it is not ahead of this GPU */

/* Read the seats of the other GPUs. `own` is this GPU's index in the quota. `begins` means that this GPU's
 * next turn has not begun. */
void look_at_peers(struct throttle *, int own, bool begins, int64_t now);

#endif
