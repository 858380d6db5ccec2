/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * How a process gets its tenant's seat at a GPU's turnstile: from the agent, or in the shared file.
 */
#ifndef SEAT_H
#define SEAT_H

#include "throttle/gpu.h"

/* The agent's answer, by places in the quota. */
struct seat_answer {
	const struct quota *quota;
	struct seat_pages gpus[QUOTA_GPUS];
};

/* Opens the GPU's turnstile, with the seats of the answer or else of the file, and takes the tenant's seat there. NULL: no
 * memory. */
struct throttle_gpu *seat_start(const struct quota *, const struct quota_gpu *, struct seat_pages *);
/* Goes over to the seats of the answer, where it has some. */
void seat_move(struct throttle_gpu *, const struct quota *, const struct quota_gpu *, struct seat_pages *);
/* What the quota says goes into the seat. */
void seat_take(struct throttle_gpu *, const struct quota *, const struct quota_gpu *);
/* The quota names no seat any more: it is not throttled here. */
void seat_leave(struct throttle_gpu *);
/* The tenant's seat in the file of another GPU, only to look at it; NULL: there is none. */
struct seat *seat_peer(const struct quota_gpu *);
/* Asks the agent. False: none answers. `log`: what an operator should know of that. */
bool seat_ask(const struct quota *, struct seat_answer *, bool log);
/* Unmaps what nobody has taken over (and set to nothing). */
void seat_drop(struct seat_pages *);
static inline bool seat_has_changed(const struct throttle_gpu *g)
{
	return g->pages.terms && atomic_load_explicit(&g->pages.terms->changes, memory_order_relaxed) != g->pages.changes;
}
bool seat_holder_is_dead(const struct throttle_gpu *, unsigned process);

#endif
