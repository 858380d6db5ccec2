/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Get the tenant's seat at a GPU's turnstile, from the agent or in the shared file.
 */
#ifndef SEAT_H
#define SEAT_H

#include "throttle/gpu.h"

/* The agent's answer, by index in the quota. */
struct seat_answer {
	const struct quota *quota;
	struct seat_pages gpus[QUOTA_GPUS];
};

/* Open the GPU's turnstile with the answer's seats or else the file's, and take the tenant's seat. NULL without
 * memory. */
struct throttle_gpu *seat_start(const struct quota *, const struct quota_gpu *, struct seat_pages *);
/* Switch to the answer's seats, if any. */
void seat_move(struct throttle_gpu *, const struct quota *, const struct quota_gpu *, struct seat_pages *);
/* Write the quota's settings into the seat. */
void seat_take(struct throttle_gpu *, const struct quota *, const struct quota_gpu *);
/* The quota has no seat any more, so do not throttle. */
void seat_leave(struct throttle_gpu *);
/* Open the tenant's seat in another GPU's file for reading. NULL without one. */
struct seat *seat_peer(const struct quota_gpu *);
/* Query the agent. False without an answer. `log`: messages for operators. */
bool seat_ask(const struct quota *, struct seat_answer *, bool log);
/* Unmap parts that were not taken over. Parts taken over are set to nothing. */
void seat_drop(struct seat_pages *);
static inline bool seat_has_changed(const struct throttle_gpu *g)
{
	return g->pages.terms && atomic_load_explicit(&g->pages.terms->changes, memory_order_relaxed) != g->pages.changes;
}
bool seat_holder_is_dead(const struct throttle_gpu *, unsigned process);

#endif
