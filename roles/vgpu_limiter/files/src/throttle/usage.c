/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Charge finished launches, and write the usage into the seat.
 */
#include "throttle/usage.h"

#include "throttle/busy.h"
#include "throttle/claims.h"
#include "throttle/colocate.h"

void usage_spend(struct throttle_gpu *g, int64_t asked, int64_t now, int64_t busy_ns)
{
	turnstile_spend(seat_of(g), g->terms, asked, now, busy_ns);
	g->own_paid = turnstile_charge(g->own_paid, asked, now, busy_ns, g->terms.percent, turnstile_most_debt(g->terms));
}

static void account(struct throttle_gpu *g, const struct launch *done, int64_t busy_ns, int64_t now)
{
	if (g->seat < 0)	/* the seat was released in the meantime */
		return;
	/* The value is below 0 if less was used than charged. Public counters must never decrease. */
	int64_t used = g->unseen_ns + busy_ns;
	g->unseen_ns = used < 0 ? used : 0;
	if (used > 0)
		atomic_fetch_add(&seat_of(g)->used_ns, (uint64_t)used);
	if (done->charged)
		usage_spend(g, done->asked_ns, now, busy_ns - done->charged_ns);
}

struct others usage_of_others(const struct throttle_gpu *g)
{
	return (struct others){ g->peers_held_ns + colocate_shared_ns(g), turnstile_passes(g->mine) };
}

int64_t usage_harvest(struct throttle_gpu *g, int64_t now, bool *idle)
{
	int64_t in_flight = 0, busy_ns;
	struct launch done;
	struct asking asking = { .now_ns = now };
	*idle = true;
	for (struct busy *b = g->contexts; b; b = b->next) {
		while (busy_harvest(b, usage_of_others(g), &asking, &done, &busy_ns)) {
			account(g, &done, busy_ns, now);
			g->progress_ns = g->done_ns = now;
		}
		in_flight += b->in_flight_ns;
		*idle = *idle && busy_is_idle(b);
	}
	busy_end_asking(&asking);
	if (*idle)
		g->progress_ns = g->done_ns = now;
	return in_flight;
}

bool usage_is_shown(const struct throttle *t, const struct throttle_gpu *g)
{
	return t->quota->gpu_count > 1 || is_colocated(g->terms);
}

void usage_tell_due(struct throttle_gpu *g)
{
	int64_t due = 0;
	/* The GPU divides its time between two processes with work, so an offline kernel makes this work take up to
	 * twice as long. */
	for (struct busy *b = g->contexts; b; b = b->next)
		if (!busy_is_idle(b))
			due = (due ? due : g->done_ns) + b->in_flight_ns * (g->shared ? 2 : 1);
	if (atomic_load(&seat_of(g)->due) != due)
		atomic_store(&seat_of(g)->due, due);
}
