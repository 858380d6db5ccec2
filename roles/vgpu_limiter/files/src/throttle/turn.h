/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * This process's turn on the GPU. Requires the throttle's lock. Waiting times are the sleep until the next check, 0 for
 * none.
 */
#ifndef TURN_H
#define TURN_H

#include "throttle/gpu.h"

/* Return whether this process has the GPU. An ended lease counts until another tenant takes one. */
bool has_lease(struct throttle_gpu *, int64_t now);
/* Return the time to wait because the turn is over. */
int64_t turn_ends(struct throttle_gpu *, int64_t now, bool idle, int64_t in_flight);
/* Return the time to wait for the lease, which is taken when available. */
int64_t wait_for_turn(struct throttle_gpu *, int64_t now, int64_t until);

/* Return the time to wait for work in flight. */
int64_t drain_ns(int64_t in_flight);
/* Random on purpose: with fixed distances, processes always get turns in the same order, and the last of three
 * almost none. */
int64_t poll_ns(struct throttle_gpu *);

#endif
