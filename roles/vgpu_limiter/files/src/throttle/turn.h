/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The turn of this process among all that use the GPU. With the throttle's lock held. Waits are told as how long to sleep before
 * asking again; 0: none.
 */
#ifndef TURN_H
#define TURN_H

#include "throttle/gpu.h"

/* Whether this process has the GPU. A lease that is over counts until another tenant has the next one. */
bool has_lease(struct throttle_gpu *, int64_t now);
/* How long to wait because its turn is over. */
int64_t turn_ends(struct throttle_gpu *, int64_t now, bool idle, int64_t in_flight);
/* How long to wait until it has the lease, which it takes until then. */
int64_t wait_for_turn(struct throttle_gpu *, int64_t now, int64_t until);

/* How long to wait for work on its way. */
int64_t drain_ns(int64_t in_flight);
/* Uneven on purpose: processes that ask at a fixed distance from each other would always get the turn in the same order, and
 * of three the last one next to nothing. */
int64_t poll_ns(struct throttle_gpu *);

#endif
