/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Holding launches back.
 *
 * A launch goes through if three things hold, and waits where one does not:
 *   1. the tenant has credit: its share of the time that went by covers the GPU time that it used
 *      (turnstile.h). What a launch will take is charged at once by estimate, and put right when it is
 *      measured: so a process that ends in between has paid. `contended` needs no credit while no other
 *      tenant wants the GPU; `burst` may run without, behind everybody who has some, and owes it.
 *   2. not too much work is on its way already: what is launched cannot be taken back.
 *   3. it is this process's turn. One throttled process has the GPU at a time, the others of its tenant
 *      included, for only then do the events tell what each used. The lease says until when at most; it
 *      is given back when the work is done and the turn over, or simply ends.
 *
 * Waiting is sleeping without any lock. A tenant whose share is 100 never comes here.
 */
#include "internal.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "busy.h"
#include "seat.h"

static_assert((int)THROTTLE_GPUS == (int)QUOTA_GPUS, "throttle_state has a place for each GPU of a quota");

#define IN_FLIGHT_NS (4 * NS_PER_MS)		/* work that is on its way at most, unless one launch is more */
#define IN_FLIGHT_BORROWED_NS (2 * NS_PER_MS)	/* of a borrower, which somebody with credit may be waiting for */
#define UNKNOWN_LEASE_NS (50 * NS_PER_MS)	/* for how long a kernel takes the GPU that was not measured yet */
#define DRAIN_LEASE_NS (20 * NS_PER_MS)		/* what a holder has left at least while it waits here for its own work */
#define STUCK_NS (50 * NS_PER_MS)		/* work that is so late may be waiting for what comes after it */
#define NAP_NS (50 * NS_PER_MS)			/* the longest sleep: the quota may change meanwhile */
#define LIVENESS_NS (10 * NS_PER_MS)		/* how often a waiter asks whether the holder lives */

static void raise_to(_Atomic int64_t *word, int64_t value)
{
	if (atomic_load_explicit(word, memory_order_relaxed) < value)
		atomic_store_explicit(word, value, memory_order_relaxed);
}

static struct mutex *lock_of(struct state *state) { return (struct mutex *)&state->throttle.lock; }

/* With the lock held: what the quota says now. */
static void follow(struct state *state, const struct quota *quota)
{
	struct throttle_state *t = &state->throttle;
	struct throttle_gpu *before[QUOTA_GPUS];
	bool off = true;
	memcpy(before, t->gpus, sizeof before);
	memset(t->gpus, 0, sizeof t->gpus);
	for (int i = 0; quota && i < quota->gpu_count; i++) {
		/* A GPU keeps what was begun on it, wherever the new quota lists it. */
		for (int j = 0; t->quota && j < t->quota->gpu_count; j++)
			if (before[j] && memcmp(&quota->gpus[i].uuid, &t->quota->gpus[j].uuid, sizeof(CUuuid)) == 0)
				t->gpus[i] = before[j];
		if (t->gpus[i] && t->gpus[i]->mine) {
			if (quota->gpus[i].seat >= 0)
				seat_take(t->gpus[i], quota, &quota->gpus[i]);
			else
				seat_leave(t->gpus[i]);
		}
		off = off && quota->gpus[i].sm_percent >= 100;
	}
	t->quota = quota;
	atomic_store(&t->off, off);
}

/* --- measuring --- */

static struct busy *context_of(struct throttle_gpu *g)
{
	CUcontext context = NULL;
	if (REAL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS || !context)
		return NULL;
	struct busy *b = g->contexts;
	while (b && b->context != context)
		b = b->next;
	if (!b && (b = calloc(1, sizeof *b))) {
		b->context = context;
		b->next = g->contexts;
		g->contexts = b;
	}
	return b;
}

static void account(struct throttle_gpu *g, const struct launch *done, int64_t busy_ns, int64_t now)
{
	if (g->seat < 0)	/* it was left since */
		return;
	atomic_fetch_add(&g->mine->seats[g->seat].used_ns, (uint64_t)busy_ns);
	if (done->charged)
		turnstile_spend(g->mine, g->seat, done->asked_ns, now, busy_ns - done->estimate_ns);
}

/* Accounts for what is done; returns the time that the rest will take. */
static int64_t harvest(struct throttle_gpu *g, int64_t now, bool *idle)
{
	int64_t in_flight = 0, busy_ns;
	struct launch done;
	*idle = true;
	for (struct busy *b = g->contexts; b; b = b->next) {
		while (busy_harvest(b, &done, &busy_ns)) {
			account(g, &done, busy_ns, now);
			g->progress_ns = now;
		}
		in_flight += b->in_flight_ns;
		*idle = *idle && busy_is_idle(b);
	}
	if (*idle)
		g->progress_ns = now;
	return in_flight;
}

/* --- deciding: each returns 0, or how long to sleep before asking again --- */

static int64_t within(int64_t ns, int64_t low, int64_t high) { return ns < low ? low : ns > high ? high : ns; }

static int64_t drain(int64_t in_flight) { return within(in_flight / 2, POLL_NS / 4, NS_PER_MS); }

static int64_t wait_for_credit(struct throttle_gpu *g, enum policy policy, int64_t now, bool *borrows)
{
	struct seat *seat = &g->mine->seats[g->seat];
	int64_t paid = atomic_load(&seat->paid_until), resume = turnstile_resume(atomic_load(&seat->percent));
	if (paid > now)
		g->spent = true;
	else if (paid + resume <= now)
		g->spent = false;
	*borrows = g->spent && policy != POLICY_FIXED;
	if (!g->spent || policy == POLICY_BURST || (policy == POLICY_CONTENDED && g->alone))
		return 0;
	raise_to(&seat->active_until, paid + resume + ACTIVE_NS);
	return paid + resume - now;
}

static int64_t turn_ends(struct throttle_gpu *g, int64_t now, bool idle, int64_t in_flight)
{
	struct turnstile *t = g->mine;
	struct claim rival, own = turnstile_claim(t, g->seat, now, true);
	bool waits = turnstile_rival(t, g->seat, now, &rival);
	/* This process does not wait while it has the lease, so it is another of the tenant's. */
	bool sibling = atomic_load(&t->seats[g->seat].waiting_until) > now;
	bool over = now - atomic_load(&t->lease_since) >= QUANTUM_NS;
	int order = waits ? turnstile_order(rival, own) : -1;
	g->ending = order > 0 || (over && (sibling || order == 0));
	if (!g->ending)
		return 0;
	if (!idle)
		return drain(in_flight);
	turnstile_give(t, g->process);
	g->not_before = now + 2 * POLL_NS;
	return POLL_NS;
}

static int64_t wait_for_turn(struct throttle_gpu *g, int64_t now, int64_t until)
{
	struct turnstile *t = g->mine;
	struct claim rival;
	unsigned holder = turnstile_holder(t, now), dead = 0;
	raise_to(&t->seats[g->seat].waiting_until, now + GRACE_NS);
	if (now < g->not_before)
		return POLL_NS;
	if (holder && now >= g->liveness_ns) {
		g->liveness_ns = now + LIVENESS_NS;
		if (seat_holder_is_dead(g, holder))
			dead = holder;
	}
	if (holder && !dead)
		return POLL_NS;
	if (turnstile_rival(t, g->seat, now, &rival) && turnstile_before(rival, turnstile_claim(t, g->seat, now, false)))
		return POLL_NS;
	if (!turnstile_take(t, g->process, now, until, dead))
		return POLL_NS;
	atomic_store(&t->seats[g->seat].waiting_until, 0);
	g->ending = false;
	return 0;
}

enum reason { FOR_NOTHING, FOR_CREDIT, FOR_THE_GPU, FOR_ITS_TURN };

static int64_t hold_back(struct throttle_gpu *g, struct busy *b, enum policy policy, const void *function, int64_t now,
			 enum reason *reason)
{
	bool known;
	int64_t estimate = busy_estimate(b, function, &known);
	bool idle, borrows, holds = turnstile_last_holder(g->mine) == g->process;
	int64_t in_flight = harvest(g, now, &idle), wait;
	bool look = !holds || g->ending || now - g->looked_ns >= POLL_NS;

	/* A kernel may wait for another that is launched after it, in another stream or on another GPU. So one
	 * launch goes through without waiting for its end or for a turn's, and its lease is left to end. */
	bool stuck = !idle && now - g->progress_ns > STUCK_NS + within(in_flight, 0, STUCK_NS);

	raise_to(&g->mine->seats[g->seat].active_until, now + ACTIVE_NS);
	if (holds && !idle && !stuck)
		turnstile_renew(g->mine, g->process, now, now + DRAIN_LEASE_NS);
	if (look) {
		g->looked_ns = now;
		g->alone = !turnstile_contended(g->mine, g->seat, now);
	}
	*reason = FOR_CREDIT;
	wait = wait_for_credit(g, policy, now, &borrows);
	if (wait > 0) {
		if (!idle)
			return drain(in_flight);
		turnstile_give(g->mine, g->process);
		return wait;
	}
	*reason = FOR_THE_GPU;
	int64_t most = borrows ? IN_FLIGHT_BORROWED_NS : IN_FLIGHT_NS;
	if (!stuck && (busy_is_full(b) || (!idle && in_flight + estimate > most)))
		return drain(in_flight);
	*reason = FOR_ITS_TURN;
	if (holds && look && !stuck && (wait = turn_ends(g, now, idle, in_flight)) > 0)
		return wait;
	int64_t until = now + in_flight + within(estimate * 3 / 2, known ? 2 * NS_PER_MS : UNKNOWN_LEASE_NS, LEASE_MAX_NS);
	if (holds && turnstile_renew(g->mine, g->process, now, until))
		return 0;
	return wait_for_turn(g, now, until);
}

static void nap(struct state *state, struct throttle_gpu *g, int64_t ns, enum reason reason)
{
	int64_t began = now_ns();
	struct timespec time = { 0, (long)(ns < NAP_NS ? ns : NAP_NS) };
	bool first = g->sleepers++ == 0;
	mutex_unlock(lock_of(state));
	clock_nanosleep(CLOCK_MONOTONIC, 0, &time, NULL);
	mutex_lock(lock_of(state));
	g->sleepers--;
	/* Several threads that sleep at once have lost the time once; a full queue is the program's own doing. */
	if (first && reason != FOR_THE_GPU)
		atomic_fetch_add(&g->mine->seats[g->seat].throttled_ns, (uint64_t)(now_ns() - began));
}

/* With the lock held, and again when it returns. NULL: this launch is not throttled. */
static struct launch *admit(struct state *state, const void *function)
{
	for (;;) {
		const struct quota *quota = state->throttle.quota;
		int i = quota ? vgpu_gpu_of_current_context(quota) : -1;
		if (i < 0 || quota->gpus[i].sm_percent >= 100)
			return NULL;
		struct throttle_gpu *g = state->throttle.gpus[i];
		if (!g)
			g = state->throttle.gpus[i] = seat_start(quota, &quota->gpus[i]);
		struct busy *b = g && g->mine ? context_of(g) : NULL;
		if (!b)
			return NULL;
		int64_t now = now_ns();
		enum reason reason = FOR_NOTHING;
		int64_t wait = hold_back(g, b, (enum policy)quota->policy, function, now, &reason);
		if (wait == 0) {
			g->progress_ns = now;	/* or else the next is not let through before STUCK_NS are over again */
			if (busy_is_full(b))	/* of work that is stuck: this cannot be measured */
				return NULL;
			struct launch *launch = busy_reserve(b, function, now);
			launch->charged = !(quota->policy == POLICY_CONTENDED && g->alone);
			if (launch->charged)
				turnstile_spend(g->mine, g->seat, now, now, launch->estimate_ns);
			return launch;
		}
		nap(state, g, wait, reason);
		mutex_unlock(lock_of(state));
		quota = vgpu_quota();
		mutex_lock(lock_of(state));
		if (quota != state->throttle.quota)
			follow(state, quota);
	}
}

struct passage throttle_enter(const void *function, CUstream stream)
{
	struct passage passage = { NULL, stream, false };
	const struct quota *quota = vgpu_quota();
	struct state *state = vgpu_state();
	int status = CU_STREAM_CAPTURE_STATUS_NONE;

	if (!state) {
		/* No tenant's: so it stays, and the next launch need not ask. */
		state = atomic_load_explicit(&vgpu_state_page, memory_order_acquire);
		if (state)
			atomic_store(&state->throttle.off, 1);
		return passage;
	}
	mutex_lock(lock_of(state));
	if (quota != state->throttle.quota || (!quota && !state->throttle.off))
		follow(state, quota);
	mutex_unlock(lock_of(state));
	/* What is captured is not run now; where that cannot be told, the launch itself will fail. */
	if (state->throttle.off || REAL(cuStreamIsCapturing)(stream, &status) != CUDA_SUCCESS
	    || status != CU_STREAM_CAPTURE_STATUS_NONE)
		return passage;
	/* It runs on the stream's GPU, and so must the events be of the stream's context. */
	bool entered = vgpu_enter_stream(stream);
	mutex_lock(lock_of(state));
	passage.launch = admit(state, function);
	mutex_unlock(lock_of(state));
	if (passage.launch)
		passage.timed = busy_before(passage.launch, stream);
	vgpu_leave_stream(entered);
	return passage;
}

void throttle_leave(const struct passage *passage, CUresult result)
{
	if (!passage->launch)
		return;
	bool entered = vgpu_enter_stream(passage->stream);
	busy_after(passage->launch, passage->stream, passage->timed, result == CUDA_SUCCESS);
	vgpu_leave_stream(entered);
}

void throttle_settle(void)
{
	struct state *state = vgpu_state();
	bool idle;
	if (!state)
		return;
	mutex_lock(lock_of(state));
	for (int i = 0; i < QUOTA_GPUS; i++)
		if (state->throttle.gpus[i] && state->throttle.gpus[i]->mine)
			harvest(state->throttle.gpus[i], now_ns(), &idle);
	mutex_unlock(lock_of(state));
}

void throttle_context_gone(CUcontext context)
{
	struct state *state = vgpu_state();
	if (!state)
		return;
	mutex_lock(lock_of(state));
	for (int i = 0; i < QUOTA_GPUS; i++) {
		struct throttle_gpu *g = state->throttle.gpus[i];
		struct busy **at = g ? &g->contexts : NULL;
		while (at && *at && (*at)->context != context)
			at = &(*at)->next;
		if (!at || !*at)
			continue;
		/* What was on its way has been charged by estimate, and that is what it stays at. */
		struct busy *gone = *at;
		*at = gone->next;
		free(gone);
	}
	mutex_unlock(lock_of(state));
}
