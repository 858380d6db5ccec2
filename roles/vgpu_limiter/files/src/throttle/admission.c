/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Whether a launch may go.
 */
#include "throttle/admission.h"

#include "throttle/claims.h"
#include "throttle/lengths.h"
#include "throttle/peers.h"
#include "throttle/times.h"
#include "throttle/turn.h"
#include "throttle/usage.h"
#include "throttle/words.h"

#define IN_FLIGHT_NS (4 * NS_PER_MS)		/* work that is on its way at most, unless one launch is more */
#define IN_FLIGHT_BORROWED_NS (2 * NS_PER_MS)	/* of a borrower, which somebody with credit may be waiting for */
#define UNKNOWN_LEASE_NS (50 * NS_PER_MS)	/* for how long a kernel takes the GPU that was not measured yet */
#define DRAIN_LEASE_NS (20 * NS_PER_MS)		/* what a holder has left at least while it waits here for its own work */
#define STUCK_NS (50 * NS_PER_MS)		/* work that is so late may be waiting for what comes after it */
#define PASS_NS (2 * NS_PER_MS)			/* after which it is helped beside the work of the lease's holder */

static int64_t wait_for_credit(struct throttle_gpu *g, enum policy policy, int64_t now, bool *borrows)
{
	/* More than this process has used, and its tenant's others may have: so much was not used by any. */
	int64_t others = policy == POLICY_BURST ? BORROW_MAX_NS : SIBLING_DEBT_MAX_NS;
	int64_t most = (g->own_paid > now ? g->own_paid : now) + others;
	int64_t paid = turnstile_limit_debt(seat_of(g), now, most) - g->lead_ns, resume = turnstile_resume(g->terms.percent);
	if (paid > now)
		g->spent = true;
	else if (paid + resume <= now)
		g->spent = false;
	*borrows = g->spent && policy != POLICY_FIXED;
	if (!g->spent || policy == POLICY_BURST || (policy == POLICY_CONTENDED && g->alone))
		return 0;
	turnstile_set_active(seat_of(g), now, paid + resume + ACTIVE_NS);
	return paid + resume - now + poll_ns(g);
}

int64_t hold_back(struct throttle *t, int gpu, struct busy *b, const struct work *work, int64_t now, enum reason *reason)
{
	struct throttle_gpu *g = t->gpus[gpu];
	enum policy policy = (enum policy)g->terms.policy;
	bool known;
	int64_t estimate = busy_estimate(b, work, &known);
	bool idle, borrows, holds = has_lease(g, now);
	bool look = !holds || g->ending || now - g->looked_ns >= POLL_NS;

	g->watches = false;
	if (look)
		turnstile_count(g->mine);
	if (holds && look && turnstile_is_second(g->mine, g->seat, now)) {
		turnstile_give(g->mine, g->seat, g->process);
		g->mine->lost_ns = now;
		holds = false;
	}
	if (t->quota->gpu_count > 1 && look)
		look_at_peers(t, gpu, !holds, now);
	int64_t in_flight = usage_harvest(g, now, &idle), wait;
	if (t->quota->gpu_count > 1)
		usage_tell_due(g);

	/* A kernel may wait for another that is launched after it, in another stream or on another GPU. So one
	 * launch goes through without waiting for its end or for a turn's, and its lease is left to end. */
	bool stuck = !idle && now - g->progress_ns > STUCK_NS + within(in_flight, 0, STUCK_NS);

	turnstile_set_active(seat_of(g), now, now + ACTIVE_NS);
	if (holds && !idle && !stuck)
		turnstile_renew(g->mine, g->seat, g->process, now, now + DRAIN_LEASE_NS);
	if (look) {
		g->looked_ns = now;
		turnstile_show(seat_of(g), g->terms);
		g->alone = !turnstile_contended(g->mine, g->seat, now);
	}
	*reason = FOR_CREDIT;
	wait = wait_for_credit(g, policy, now, &borrows);
	bool hurry = g->hurry && wait < BORROW_MAX_NS;
	/* Another GPU of the tenant had credit a moment ago and works. As many launches may go here, or what works there waits for
	 * this GPU, which another tenant takes: both tenants then have one GPU each, step by step. */
	if (wait > 0 && !hurry && !(g->behind && wait < LEAD_MAX_NS)) {
		if (!idle)
			return drain_ns(in_flight);
		turnstile_give(g->mine, g->seat, g->process);
		return wait;
	}
	*reason = FOR_THE_GPU;
	int64_t most = borrows ? IN_FLIGHT_BORROWED_NS : IN_FLIGHT_NS;
	if (!stuck && (busy_is_full(b) || (!idle && in_flight + estimate > most))) {
		/* What went beside another's work still waits for its turn. Two tenants of which each has the GPU that the other
		 * waits for would otherwise go on so, step by step. */
		if (!holds && g->has_peers)
			wait_for_turn(g, now, now + in_flight + DRAIN_LEASE_NS);
		return drain_ns(in_flight);
	}
	*reason = FOR_ITS_TURN;
	/* Not only with a look: that may have waited for work on its way and not come so far. */
	if (holds && !stuck && (g->ending || now - g->turn_checked_ns >= POLL_NS)) {
		g->turn_checked_ns = now;
		if ((wait = turn_ends(g, now, idle, in_flight)) > 0)
			return wait;
	}
	int64_t until = now + in_flight + within(estimate * 3 / 2, known ? 2 * NS_PER_MS : UNKNOWN_LEASE_NS, LEASE_MAX_NS);
	if (holds && turnstile_renew(g->mine, g->seat, g->process, now, until))
		return 0;
	wait = wait_for_turn(g, now, until);
	if (wait == 0 || !hurry || turnstile_has_slot(g->mine, g->seat, now))
		return hurry ? 0 : wait;
	if (now - g->hurry_ns <= PASS_NS)
		return wait;
	/* Late enough: the GPU divides its time between the two. What may be of the next step is not let through again soon, or
	 * two tenants would go on step by step, each in the other's slots too. */
	if (!g->behind)
		g->hurry_ns = now;
	return 0;
}
