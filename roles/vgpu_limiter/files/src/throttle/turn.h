/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * This process's turn on the GPU. Requires the throttle's lock. Functions that return a waiting time return the time to
 * sleep until the next check, or 0 to continue at once.
 */
#ifndef TURN_H
#define TURN_H

#include "throttle/gpu.h"

/* Return whether this process has the GPU. A lease that has ended still counts until another tenant takes one. */
bool has_lease(struct throttle_gpu *, int64_t now);
/* Return how long to wait because the turn is over. */
int64_t turn_ends(struct throttle_gpu *, int64_t now, bool idle, int64_t in_flight);
/* Take the lease if it is available. Return how long to wait for it. */
int64_t wait_for_turn(struct throttle_gpu *, int64_t now, int64_t until);

/* Return how long to wait for work in flight. */
int64_t drain_ns(int64_t in_flight);
/* Return a random poll interval. With a fixed one, processes would always get turns in the same order, and the last of
 * three would get almost no turn. */
int64_t poll_ns(struct throttle_gpu *);

#endif
