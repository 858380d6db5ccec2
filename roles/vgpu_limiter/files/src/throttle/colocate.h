/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Online and offline tenants (policy `colocate`).
 *
 * An online tenant does not wait for offline tenants. An offline tenant launches only while no online tenant has or
 * recently had work, and while the GPU's total use is below the waterline. A running kernel is not interrupted, so an
 * online launch may find the rest of an offline kernel.
 */
#ifndef THROTTLE_COLOCATE_H
#define THROTTLE_COLOCATE_H

#include "throttle/gpu.h"

#define OFFLINE_IN_FLIGHT_NS NS_PER_MS	/* maximum offline work in flight. A single longer kernel may exceed it */

static inline bool is_colocated(struct terms terms) { return terms.policy == POLICY_COLOCATE; }
static inline bool is_online(struct terms terms) { return is_colocated(terms) && terms.priority == 0; }
static inline bool is_offline(struct terms terms) { return is_colocated(terms) && terms.priority != 0; }

/* Note which tenants this process does not wait for. */
void colocate_look(struct throttle_gpu *);
/* Mark how long offline tenants must leave the GPU to this tenant. */
void colocate_show_online(struct throttle_gpu *, int64_t now);
/* Return the minimum time that an offline launch waits for online tenants and for the waterline. */
int64_t colocate_wait(struct throttle_gpu *, int waterline, int64_t in_flight, int64_t now);
/* Return the GPU time of the online tenants if this tenant is offline, and of the offline tenants if it is online.
 * Their work may run at the same time as this process's work, and then prolongs it. */
uint64_t colocate_shared_ns(const struct throttle_gpu *);
/* Record how long an online launch without other work in flight must wait for the offline kernel that runs now. */
void colocate_found(struct throttle_gpu *, int64_t now);

#endif
