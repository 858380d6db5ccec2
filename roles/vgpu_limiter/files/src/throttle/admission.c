/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Decide whether a launch may start.
 */
#include "throttle/admission.h"

#include "throttle/claims.h"
#include "throttle/colocate.h"
#include "throttle/lengths.h"
#include "throttle/peers.h"
#include "throttle/times.h"
#include "throttle/turn.h"
#include "throttle/usage.h"
#include "throttle/words.h"

#define IN_FLIGHT_NS (4 * NS_PER_MS)		/* maximum work in flight. A single launch may exceed it */
#define IN_FLIGHT_BORROWED_NS (2 * NS_PER_MS)	/* maximum for a borrower. Tenants with credit may have to wait for it */
#define UNKNOWN_LEASE_NS (50 * NS_PER_MS)	/* assumed duration of a kernel that was never measured */
#define DRAIN_LEASE_NS (20 * NS_PER_MS)		/* minimum remaining lease of a holder that waits for its own work */
#define STUCK_NS (50 * NS_PER_MS)		/* if work is this late, it may be waiting for work that is launched later */
#define PASS_NS (2 * NS_PER_MS)			/* a launch delayed this long may run concurrently with the lease holder's work */

static int64_t wait_for_credit(struct throttle_gpu *g, enum policy policy, int64_t now, bool *borrows)
{
	/* Upper limit of the debt: this process's use, plus the most that the tenant's other processes can have used. */
	int64_t others = terms_may_borrow_freely(g->terms) ? BORROW_MAX_NS : SIBLING_DEBT_MAX_NS;
	int64_t most = (g->own_paid > now ? g->own_paid : now) + others;
	int64_t paid = turnstile_limit_debt(seat_of(g), now, most) - g->lead_ns, resume = turnstile_resume(g->terms.percent);
	if (paid > now)
		g->spent = true;
	else if (paid + resume <= now)
		g->spent = false;
	*borrows = g->spent && policy != POLICY_FIXED;
	if (!g->spent || terms_may_borrow_freely(g->terms) || (policy == POLICY_CONTENDED && g->alone))
		return 0;
	turnstile_set_active(seat_of(g), now, paid + resume + ACTIVE_NS);
	return paid + resume - now + poll_ns(g);
}

/* Return how much of this process's work may be in flight. */
static int64_t most_in_flight(const struct throttle_gpu *g, bool borrows)
{
	if (is_offline(g->terms))
		return OFFLINE_IN_FLIGHT_NS;
	if (is_online(g->terms) && g->alone)
		return INT64_MAX / 2;
	return borrows ? IN_FLIGHT_BORROWED_NS : IN_FLIGHT_NS;
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
	if (look) {
		turnstile_count(g->mine);
		colocate_look(g);
	}
	if (holds && look && turnstile_is_second(g->mine, g->seat, now)) {
		turnstile_give(g->mine, g->seat, g->process);
		g->mine->lost_ns = now;
		holds = false;
	}
	if (t->quota->gpu_count > 1 && look)
		look_at_peers(t, gpu, !holds, now);
	int64_t in_flight = usage_harvest(g, now, &idle), wait;
	if (usage_is_shown(t, g))
		usage_tell_due(g);

	/* A kernel may wait for one that is launched later, in another stream or on another GPU. Then start one launch
	 * without waiting for earlier work or a turn, and let its lease expire. */
	bool stuck = !idle && now - g->progress_ns > STUCK_NS + within(in_flight, 0, STUCK_NS);

	if (is_online(g->terms))
		colocate_show_online(g, now);
	else
		turnstile_set_active(seat_of(g), now, now + ACTIVE_NS);
	*reason = FOR_ITS_TURN;
	if (is_offline(g->terms) && (wait = colocate_wait(g, t->quota->waterline, in_flight, now)) > 0) {
		if (idle)
			turnstile_give(g->mine, g->seat, g->process);
		return wait;
	}
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
	/* Another GPU of the tenant had credit a moment ago and is working. Start as many launches here as there.
	 * Otherwise the work on the other GPU waits for this GPU, another tenant takes this GPU, and at each step each
	 * tenant gets only one of the two GPUs. */
	if (wait > 0 && !hurry && !(g->behind && wait < LEAD_MAX_NS)) {
		if (!idle)
			return drain_ns(in_flight);
		turnstile_give(g->mine, g->seat, g->process);
		return wait;
	}
	*reason = FOR_THE_GPU;
	int64_t most = most_in_flight(g, borrows);
	if (!stuck && (busy_is_full(b) || (!idle && in_flight + estimate > most))) {
		/* A launch that runs concurrently with another tenant's work still waits for its turn. Otherwise two
		 * tenants, each with the GPU that the other one needs, would stay in this state at each step. */
		if (!holds && g->has_peers)
			wait_for_turn(g, now, now + in_flight + DRAIN_LEASE_NS);
		return drain_ns(in_flight);
	}
	*reason = FOR_ITS_TURN;
	/* Check the turn here too, because the code above may have waited for work in flight. */
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
	/* The launch is late enough, so it may share the GPU now. Do not start launches of the next step soon after it.
	 * Otherwise two tenants would continue step by step, each in the other's time slot. */
	if (!g->behind)
		g->hurry_ns = now;
	return 0;
}
