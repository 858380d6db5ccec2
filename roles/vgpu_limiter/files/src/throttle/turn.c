/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Take the lease, keep it for a turn, and release it.
 */
#include "throttle/turn.h"

#include "throttle/claims.h"
#include "throttle/doubts.h"
#include "throttle/seat.h"
#include "throttle/times.h"
#include "throttle/words.h"

#define OVERTIME_NS (QUANTUM_NS / 2)		/* maximum extension of a turn for work on the tenant's other GPUs */
#define GANG_NS NS_PER_SECOND			/* after a peer was late, the processes count as waiting for each other for this long */
#define LIVENESS_NS (10 * NS_PER_MS)		/* interval at which a waiting process checks whether the holder is alive */

int64_t drain_ns(int64_t in_flight) { return within(in_flight / 2, POLL_NS / 4, NS_PER_MS); }

int64_t poll_ns(struct throttle_gpu *g)
{
	g->noise = g->noise * UINT32_C(1664525) + UINT32_C(1013904223);
	return POLL_NS / 2 + ((POLL_NS * (g->noise >> 16)) >> 16);
}

/* Return the own claim from the values that other tenants trust, so that all tenants agree who is first. */
static struct claim own_claim(const struct throttle_gpu *g, int64_t now, bool holds)
{
	struct terms terms = g->mine->terms ? turnstile_terms(g->mine, g->seat) : g->terms;
	return turnstile_claim(g->mine, g->seat, terms, now, holds);
}

int64_t turn_ends(struct throttle_gpu *g, int64_t now, bool idle, int64_t in_flight)
{
	struct turnstile *t = g->mine;
	struct claim rival, claim = own_claim(g, now, true);
	bool waits = turnstile_rival(t, g->seat, now, &rival) >= 0;
	/* This process does not wait while it has the lease. If its seat is marked as waiting, another process of the
	 * tenant waits. */
	bool sibling = turnstile_is_waiting(seat_of(g), now);
	bool over = now - g->took_ns >= QUANTUM_NS;
	int order = waits ? turnstile_order(rival, claim) : -1;
	bool ends = order > 0 || (over && (sibling || order == 0));
	if (ends && !g->ending)
		g->ending_ns = now;
	g->ending = ends;
	/* Work in flight on the tenant's other GPUs may wait for the next launch here. */
	int64_t ended_ns = g->took_ns + QUANTUM_NS < g->ending_ns ? g->took_ns + QUANTUM_NS : g->ending_ns;
	bool overtime = now - ended_ns < OVERTIME_NS;
	if (!ends || (overtime && (g->behind || g->hurry)))
		return 0;
	if (!idle)
		return drain_ns(in_flight);
	/* After its turn, keep an idle GPU only while a peer on another GPU of the tenant works, and if a peer was late
	 * in the last second. Such processes wait for each other. */
	if (overtime && g->together && now - g->late_ns < GANG_NS)
		return POLL_NS;
	turnstile_give(t, g->seat, g->process);
	g->not_before = now + 2 * POLL_NS;
	return POLL_NS;
}

/* Return how long to wait for the holder's lease, which is short after a useless wake-up. */
static int64_t wait_for_lease(struct throttle_gpu *g, int holder, int64_t now)
{
	struct watch watch = turnstile_watch(g->mine, holder);
	bool in_vain = g->woken && watch.half == g->watch.half && watch.value == g->watch.value;
	g->woken = false;
	g->watch = watch;
	g->watches = !in_vain;
	/* Vary the time. The kernel wakes the longest sleeper first, and the order of several processes must change. */
	return in_vain ? poll_ns(g) : turnstile_watch_ns(g->mine, holder, now, WATCH_NS - poll_ns(g));
}

int64_t wait_for_turn(struct throttle_gpu *g, int64_t now, int64_t until)
{
	struct turnstile *t = g->mine;
	struct claim first, claim = own_claim(g, now, false);
	int holder = turnstile_holder(t, -1, now), rival;
	turnstile_set_waiting(seat_of(g), now, now + GRACE_NS);
	if (now < g->not_before)
		return poll_ns(g);
	if (holder >= 0 && now >= g->liveness_ns) {
		unsigned process = turnstile_last_process(t, holder);
		g->liveness_ns = now + LIVENESS_NS;
		if (seat_holder_is_dead(g, process)) {
			turnstile_bury(t, holder, process);
			holder = turnstile_holder(t, -1, now);
		}
	}
	if (holder >= 0) {
		turnstile_waits_for(t, g->seat, holder, claim, now);
		return wait_for_lease(g, holder, now);
	}
	rival = turnstile_rival(t, g->seat, now, &first);
	if (rival >= 0 && turnstile_before(first, claim) && turnstile_yields_to(t, rival, now))
		return poll_ns(g);
	if (!turnstile_take(t, g->seat, g->process, now, until))
		return poll_ns(g);
	turnstile_had_turn(t, now);
	atomic_store(&seat_of(g)->waiting_until, 0);
	g->took_ns = now;
	g->ending = false;
	return 0;
}

bool has_lease(struct throttle_gpu *g, int64_t now)
{
	struct turnstile *t = g->mine;
	if (turnstile_last_process(t, g->seat) != g->process)
		return false;
	if (turnstile_process(t, g->seat, now) == g->process || turnstile_holder(t, g->seat, now) < 0)
		return true;
	turnstile_give(t, g->seat, g->process);
	return false;
}
