/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Get the tenant's seat at a GPU's turnstile from the agent or from the shared file.
 */
#ifndef SEAT_H
#define SEAT_H

#include "throttle/gpu.h"

/* The agent's answer. The parts are ordered by index in the quota. */
struct seat_answer {
	const struct quota *quota;
	struct seat_pages gpus[QUOTA_GPUS];
};

/* Open the GPU's turnstile and take the tenant's seat, from the agent's answer or else from the file. Return NULL
 * without memory. */
struct throttle_gpu *seat_start(const struct quota *, const struct quota_gpu *, struct seat_pages *);
/* Switch to the answer's seats, if any. */
void seat_move(struct throttle_gpu *, const struct quota *, const struct quota_gpu *, struct seat_pages *);
/* Take the GPU's seat, clear it if an earlier tenant used it, and publish the quota's settings in it. */
void seat_take(struct throttle_gpu *, const struct quota *, const struct quota_gpu *);
/* Stop throttling, because the quota no longer has a seat. */
void seat_leave(struct throttle_gpu *);
/* Open the tenant's seat in another GPU's file for reading. Return NULL without a seat. */
struct seat *seat_peer(const struct quota_gpu *);
/* Query the agent. Return false without an answer. `log` enables log lines for operators. */
bool seat_ask(const struct quota *, struct seat_answer *, bool log);
/* Unmap the parts of an answer that were not used. Parts in use are already cleared from the answer. */
void seat_drop(struct seat_pages *);
static inline bool seat_has_changed(const struct throttle_gpu *g)
{
	return g->pages.terms && atomic_load_explicit(&g->pages.terms->changes, memory_order_relaxed) != g->pages.changes;
}
bool seat_holder_is_dead(const struct throttle_gpu *, unsigned process);

#endif
