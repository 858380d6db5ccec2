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
 * Processes of a tenant on several GPUs may wait for each other within kernels (collective operations). What one of them
 * is denied then keeps the others' GPUs busy for nothing. So
 *   - tenants of equal rights take slots of the clock that are the same on all GPUs (turnstile_place);
 *   - credit is that of the tenant's richest GPU, within limits, so that it ends on all of them at once (lead);
 *   - a turn, or credit, that ends goes on until this GPU has been given as many launches as the tenant's others (behind);
 *   - where work on another GPU is overdue all the same, what is launched here goes first (hurry), in the end also beside
 *     the work of the lease's holder;
 *   - time in which a kernel can only have waited is not charged, and its usual length does not grow by it (busy.c).
 *
 * Waiting is sleeping without any lock. Who waits for a lease sleeps until it is given back or ends (turnstile_sleep).
 * A tenant whose share is 100 never comes here.
 */
#include "internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
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
#define PEERS_NAP_NS (NS_PER_MS / 2)		/* the same where another GPU of the tenant may come to wait for this one */
#define OVERTIME_NS (QUANTUM_NS / 2)		/* how long a turn goes on after its end for work on the tenant's other GPUs */
#define HURRY_NS (4 * NS_PER_MS)			/* after which an overdue peer is helped, also by one that is not behind it */
#define PASS_NS (2 * NS_PER_MS)			/* after which it is helped beside the work of the lease's holder */
#define AGENT_AGAIN_NS (10 * NS_PER_SECOND)	/* how often the agent is asked for a turnstile that it did not have, */
#define AGENT_CHECK_NS (60 * NS_PER_SECOND)	/* and whether the one that it gave is still the one */
#define GANG_NS NS_PER_SECOND			/* for so long a peer that was late shows that the processes wait for each other */
#define LIVENESS_NS (10 * NS_PER_MS)		/* how often a waiter asks whether the holder lives */
#define CHANGE_AGAIN_NS (100 * NS_PER_MS)	/* how often at most the agent is asked who has changed */

static struct mutex *lock_of(struct state *state) { return (struct mutex *)&state->throttle.lock; }

static struct seat *seat_of(const struct throttle_gpu *g) { return g->mine->seats[g->seat]; }

static int64_t within(int64_t ns, int64_t low, int64_t high) { return ns < low ? low : ns > high ? high : ns; }

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
	const char *blocking = getenv("CUDA_LAUNCH_BLOCKING");
	t->blocking = blocking && *blocking && strcmp(blocking, "0") != 0;
	for (int i = 0; i < QUOTA_GPUS; i++)	/* one that was mapped for a GPU of the old quota stays mapped */
		if (!quota || !t->quota || i >= quota->gpu_count || i >= t->quota->gpu_count
		    || memcmp(&quota->gpus[i].uuid, &t->quota->gpus[i].uuid, sizeof(CUuuid)) != 0
		    || quota->gpus[i].seat != t->quota->gpus[i].seat)
			t->peers[i] = (struct peer){ 0 };
	t->quota = quota;
	atomic_store(&t->off, off);
}

/* --- measuring --- */

static bool is_object(CUstream stream) { return stream && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD; }

/* Tells the per-thread streams of threads apart, which have one handle. */
static __thread char own_stream __attribute__((tls_model("initial-exec")));

static CUstream meant_stream(CUstream stream) { return stream == CU_STREAM_PER_THREAD ? (CUstream)&own_stream : stream; }

static unsigned place_of_stream(CUstream stream)
{
	return (uint32_t)((uintptr_t)stream >> 4) * UINT32_C(2654435761) >> 26;	/* 6 bits: THROTTLE_STREAMS */
}

/* NULL: not known, or another one for each thread or context. */
static CUcontext known_context(const struct throttle_state *t, CUstream stream)
{
	unsigned i = place_of_stream(stream);
	return is_object(stream) && t->streams[i].stream == stream ? t->streams[i].context : NULL;
}

static struct busy *find_busy(const struct throttle_gpu *g, CUcontext context)
{
	struct busy *b = g ? g->contexts : NULL;
	while (b && b->context != context)
		b = b->next;
	return b;
}

/* The GPU of a context, by its place in the quota. Known is one in which something was launched; of any other the driver is
 * asked, and it must be the thread's. */
static int gpu_of(const struct throttle_state *t, CUcontext context, bool is_current)
{
	for (int i = 0; i < t->quota->gpu_count; i++)
		if (find_busy(t->gpus[i], context))
			return i;
	return is_current ? vgpu_gpu_of_current_context(t->quota) : -1;
}

static struct busy *add_busy(struct throttle_gpu *g, CUcontext context)
{
	struct busy *b = find_busy(g, context);
	if (!b && (b = calloc(1, sizeof *b))) {
		b->context = context;
		b->noise = g->process;
		b->next = g->contexts;
		g->contexts = b;
	}
	return b;
}

static void spend(struct throttle_gpu *g, int64_t asked, int64_t now, int64_t busy_ns)
{
	turnstile_spend(seat_of(g), g->terms, asked, now, busy_ns);
	g->own_paid = turnstile_charge(g->own_paid, asked, now, busy_ns, g->terms.percent, turnstile_most_debt(g->terms));
}

static void account(struct throttle_gpu *g, const struct launch *done, int64_t busy_ns, int64_t now)
{
	if (g->seat < 0)	/* it was left since */
		return;
	/* Below 0: less than was accounted for before. Others see a counter, which only grows. */
	int64_t used = g->unseen_ns + busy_ns;
	g->unseen_ns = used < 0 ? used : 0;
	if (used > 0)
		atomic_fetch_add(&seat_of(g)->used_ns, (uint64_t)used);
	if (done->charged)
		spend(g, done->asked_ns, now, busy_ns - done->charged_ns);
}

static struct others others(const struct throttle_gpu *g)
{
	return (struct others){ g->peers_held_ns, turnstile_passes(g->mine) };
}

/* Accounts for what is done; returns the time that the rest will take. */
static int64_t harvest(struct throttle_gpu *g, int64_t now, bool *idle)
{
	int64_t in_flight = 0, busy_ns;
	struct launch done;
	struct asking asking = { .now_ns = now };
	*idle = true;
	for (struct busy *b = g->contexts; b; b = b->next) {
		while (busy_harvest(b, others(g), &asking, &done, &busy_ns)) {
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

/* --- several GPUs --- */

/* The tenant's other GPUs: work there may wait for work here, and the other way round. */
static void look_at_peers(struct throttle_state *t, int own, struct throttle_gpu *g, bool begins, int64_t now)
{
	int64_t paid = turnstile_paid(seat_of(g), now), least = paid;
	uint64_t held = 0;
	bool late = false;
	g->hurry = g->has_peers = g->together = g->behind = false;
	uint64_t launches = atomic_load(&seat_of(g)->launches);
	for (int i = 0; i < t->quota->gpu_count; i++) {
		const struct quota_gpu *gpu = &t->quota->gpus[i];
		struct peer *peer = &t->peers[i];
		if (i == own || gpu->sm_percent >= 100 || gpu->seat < 0)
			continue;
		if (!peer->looked) {
			/* An agent that answers is asked with the next launch; until then it is not looked at. */
			*peer = (struct peer){ .looked = true, .seat = t->no_agent ? seat_peer(gpu) : NULL };
			t->ask_agent_ns = t->no_agent ? t->ask_agent_ns : 0;
		}
		const struct throttle_gpu *used = t->gpus[i];
		const struct seat *there = used && used->mine && used->seat >= 0 ? seat_of(used) : peer->seat;
		if (!there)
			continue;
		held += atomic_load(&there->throttled_ns);
		if (!turnstile_is_active(there, now))
			continue;
		int64_t paid_there = turnstile_paid(there, now);
		least = paid_there < least ? paid_there : least;
		g->has_peers = true;
		int64_t ahead = (int64_t)(atomic_load(&there->launches) - launches);
		bool works = atomic_load(&there->due) != 0;
		if (begins && !works)
			peer->ahead = ahead;
		bool behind = works && ahead > peer->ahead && ahead <= peer->ahead + BUSY_RING;
		bool overdue = turnstile_is_overdue(there, now);
		g->behind = g->behind || behind;
		g->hurry = g->hurry || (overdue && behind);
		late = late || overdue;
		g->together = g->together || turnstile_is_working(there, now);
	}
	if (late)
		g->late_ns = now;
	else
		g->hurry_ns = now;
	g->hurry = g->hurry || now - g->hurry_ns > HURRY_NS;
	g->peers_held_ns = held;
	g->lead_ns = within(paid - least, 0, LEAD_MAX_NS);
	if (atomic_load(&seat_of(g)->lead) != g->lead_ns)
		atomic_store(&seat_of(g)->lead, g->lead_ns);
}

/* Says when the work on this GPU should be done. */
static void tell_due(struct throttle_gpu *g)
{
	int64_t due = 0;
	for (struct busy *b = g->contexts; b; b = b->next)
		if (!busy_is_idle(b))
			due = (due ? due : g->done_ns) + b->in_flight_ns;
	if (atomic_load(&seat_of(g)->due) != due)
		atomic_store(&seat_of(g)->due, due);
}

/* --- deciding: each returns 0, or how long to sleep before asking again --- */

static int64_t drain(int64_t in_flight) { return within(in_flight / 2, POLL_NS / 4, NS_PER_MS); }

/* Uneven on purpose: processes that ask at a fixed distance from each other would always get the turn in the same order, and
 * of three the last one next to nothing. */
static int64_t poll_ns(struct throttle_gpu *g)
{
	g->noise = g->noise * UINT32_C(1664525) + UINT32_C(1013904223);
	return POLL_NS / 2 + ((POLL_NS * (g->noise >> 16)) >> 16);
}

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

/* As others believe them, so that two tenants always agree who of them comes first. */
static struct claim own_claim(const struct throttle_gpu *g, int64_t now, bool holds)
{
	struct terms terms = g->mine->terms ? turnstile_terms(g->mine, g->seat) : g->terms;
	return turnstile_claim(g->mine, g->seat, terms, now, holds);
}

static int64_t turn_ends(struct throttle_gpu *g, int64_t now, bool idle, int64_t in_flight)
{
	struct turnstile *t = g->mine;
	struct claim rival, claim = own_claim(g, now, true);
	bool waits = turnstile_rival(t, g->seat, now, &rival) >= 0;
	/* This process does not wait while it has the lease, so it is another of the tenant's. */
	bool sibling = turnstile_is_waiting(seat_of(g), now);
	bool over = now - g->took_ns >= QUANTUM_NS;
	int order = waits ? turnstile_order(rival, claim) : -1;
	bool ends = order > 0 || (over && (sibling || order == 0));
	if (ends && !g->ending)
		g->ending_ns = now;
	g->ending = ends;
	/* What is on its way on the tenant's other GPUs may wait for what is launched here next. */
	int64_t ended_ns = g->took_ns + QUANTUM_NS < g->ending_ns ? g->took_ns + QUANTUM_NS : g->ending_ns;
	bool overtime = now - ended_ns < OVERTIME_NS;
	if (!ends || (overtime && (g->behind || g->hurry)))
		return 0;
	if (!idle)
		return drain(in_flight);
	/* An idle GPU is kept only for a process that does wait for the others: their work is late now and then. */
	if (overtime && g->together && now - g->late_ns < GANG_NS)
		return POLL_NS;
	turnstile_give(t, g->seat, g->process);
	g->not_before = now + 2 * POLL_NS;
	return POLL_NS;
}

/* How long to wait for the holder's lease. Who was woken and finds the same lease was woken for nothing, and naps. */
static int64_t wait_for_lease(struct throttle_gpu *g, int holder, int64_t now)
{
	struct watch watch = turnstile_watch(g->mine, holder);
	bool in_vain = g->woken && watch.half == g->watch.half && watch.value == g->watch.value;
	g->woken = false;
	g->watch = watch;
	g->watches = !in_vain;
	/* Uneven, as the kernel wakes first who has slept longest: of several processes it must not always be the same. */
	return in_vain ? poll_ns(g) : turnstile_watch_ns(g->mine, holder, now, WATCH_NS - poll_ns(g));
}

static int64_t wait_for_turn(struct throttle_gpu *g, int64_t now, int64_t until)
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

/* Whether this process has the GPU. A lease that is over counts until another tenant has the next one. */
static bool has_lease(struct throttle_gpu *g, int64_t now)
{
	struct turnstile *t = g->mine;
	if (turnstile_last_process(t, g->seat) != g->process)
		return false;
	if (turnstile_process(t, g->seat, now) == g->process || turnstile_holder(t, g->seat, now) < 0)
		return true;
	turnstile_give(t, g->seat, g->process);
	return false;
}

enum reason { FOR_NOTHING, FOR_CREDIT, FOR_THE_GPU, FOR_ITS_TURN };

static int64_t hold_back(struct throttle_state *state, int gpu, struct busy *b, const struct work *work, int64_t now, enum reason *reason)
{
	struct throttle_gpu *g = state->gpus[gpu];
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
	if (state->quota->gpu_count > 1 && look)
		look_at_peers(state, gpu, g, !holds, now);
	int64_t in_flight = harvest(g, now, &idle), wait;
	if (state->quota->gpu_count > 1)
		tell_due(g);

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
	if (wait > 0 && !hurry && !(holds && g->behind && wait < LEAD_MAX_NS)) {
		if (!idle)
			return drain(in_flight);
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
		return drain(in_flight);
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

/* Without the lock. Where a lease is watched and that cannot be slept for, a nap of `poll` has to do. */
static enum watched rest(struct watch watch, int64_t ns, int64_t poll)
{
	enum watched watched = watch.half ? turnstile_sleep(watch, ns) : WATCHED_NOT;
	struct timespec time = { 0, (long)(watch.half ? poll : ns) };
	if (watched == WATCHED_NOT)
		clock_nanosleep(CLOCK_MONOTONIC, 0, &time, NULL);
	return watched;
}

static void nap(struct state *state, struct throttle_gpu *g, int64_t ns, enum reason reason)
{
	int64_t began = now_ns(), poll = poll_ns(g);
	int64_t most = g->has_peers ? PEERS_NAP_NS : NAP_NS;
	struct watch watch = g->watches ? g->watch : (struct watch){ NULL, 0 };
	bool first = g->sleepers++ == 0;
	mutex_unlock(lock_of(state));
	enum watched watched = rest(watch, ns < most ? ns : most, poll);
	mutex_lock(lock_of(state));
	g->woken = watched == WATCHED_GIVEN;
	g->sleepers--;
	/* Several threads that sleep at once have lost the time once; a full queue is the program's own doing. */
	if (first && reason != FOR_THE_GPU && g->seat >= 0)
		atomic_fetch_add(&seat_of(g)->throttled_ns, (uint64_t)(now_ns() - began));
}

/* Asks the agent; where it did not answer, not again soon. */
static void ask(struct throttle_state *t, const struct quota *quota, struct seat_answer *answer, int64_t now)
{
	memset(answer, 0, sizeof *answer);
	if (t->no_agent && now < t->ask_agent_ns)
		return;
	t->no_agent = !seat_ask(quota, answer, !t->no_agent);
	t->ask_agent_ns = now + (t->no_agent ? AGENT_AGAIN_NS : AGENT_CHECK_NS);
	t->ask_change_ns = now + CHANGE_AGAIN_NS;
}

/* The tenant's seat on a GPU that this process only looks at. */
static void follow_peer(struct peer *peer, const struct quota_gpu *gpu, struct seat_pages *pages)
{
	struct seat *page = pages->own;
	if (!peer->looked || gpu->seat < 0)
		return;
	if (!page) {
		if (!peer->seat)
			peer->seat = seat_peer(gpu);
		return;
	}
	if (peer->page)
		munmap(peer->seat, TURNSTILE_PAGE_BYTES);
	peer->seat = page;
	peer->page = true;
	peer->ahead = 0;
	pages->seats[pages->own_seat] = pages->own = NULL;
}

/* The agent's seats are used as soon as there are some. An agent that has lost them has others then. */
static void follow_agent(struct throttle_state *t, const struct quota *quota, int64_t now)
{
	struct seat_answer answer;
	ask(t, quota, &answer, now);
	for (int i = 0; i < quota->gpu_count; i++) {
		if (t->gpus[i] && t->gpus[i]->mine)
			seat_move(t->gpus[i], quota, &quota->gpus[i], &answer.gpus[i]);
		else
			follow_peer(&t->peers[i], &quota->gpus[i], &answer.gpus[i]);
		seat_drop(&answer.gpus[i]);
	}
}

/* Begins to use a GPU. NULL: no memory. */
static struct throttle_gpu *start(struct throttle_state *t, const struct quota *quota, int gpu, int64_t now)
{
	struct seat_answer answer;
	ask(t, quota, &answer, now);
	t->gpus[gpu] = seat_start(quota, &quota->gpus[gpu], &answer.gpus[gpu]);
	for (int i = 0; i < quota->gpu_count; i++)
		seat_drop(&answer.gpus[i]);
	return t->gpus[gpu];
}

/* A launch that is to be let through. */
struct candidate {
	struct work work;
	CUstream stream;
	CUcontext context;
	bool is_current;	/* the context is the thread's */
};

/* With the lock held, and again when it returns. NULL: this launch is not throttled. */
static struct launch *admit(struct state *state, const struct candidate *c)
{
	for (;;) {
		const struct quota *quota = state->throttle.quota;
		int i = quota ? gpu_of(&state->throttle, c->context, c->is_current) : -1;
		if (i < 0 || quota->gpus[i].sm_percent >= 100)
			return NULL;
		struct throttle_gpu *g = state->throttle.gpus[i];
		if (!g)
			g = start(&state->throttle, quota, i, now_ns());
		struct busy *b = g && g->mine ? add_busy(g, c->context) : NULL;
		if (!b)
			return NULL;
		int64_t now = now_ns();
		if (now >= state->throttle.ask_agent_ns || (seat_has_changed(g) && now >= state->throttle.ask_change_ns)) {
			follow_agent(&state->throttle, quota, now);
			now = now_ns();
		}
		enum reason reason = FOR_NOTHING;
		int64_t wait = hold_back(&state->throttle, i, b, &c->work, now, &reason);
		if (wait == 0) {
			g->progress_ns = now;	/* or else the next is not let through before STUCK_NS are over again */
			if (busy_is_full(b))	/* of work that is stuck: this cannot be measured */
				return NULL;
			struct others before = others(g);
			if (turnstile_last_process(g->mine, g->seat) != g->process)
				atomic_fetch_add(&seat_of(g)->passes, 1);
			/* Work that other GPUs may wait for takes another time with each launch. */
			struct launch *launch = busy_reserve(b, &c->work, meant_stream(c->stream), before, g->has_peers, now);
			if (quota->gpu_count > 1) {
				atomic_fetch_add(&seat_of(g)->launches, 1);
				tell_due(g);
			}
			launch->charged = !(quota->policy == POLICY_CONTENDED && g->alone);
			if (launch->charged)
				spend(g, now, now, launch->estimate_ns);
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

/* Whether the launch becomes part of a graph, or that cannot be told, as the launch itself will fail then. */
static bool is_captured(CUstream stream)
{
	int status = CU_STREAM_CAPTURE_STATUS_NONE;
	return REAL(cuStreamIsCapturing)(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* With the lock held: a stream's context stays the same until it is destroyed. */
static void remember_stream(struct throttle_state *t, CUstream stream, CUcontext context)
{
	unsigned i = place_of_stream(stream);
	t->streams[i].stream = stream;
	t->streams[i].context = context;
}

/* Without the lock. The legacy stream cannot be captured. */
static struct launch *enter(struct state *state, struct candidate *c, bool *entered)
{
	if (c->stream && c->stream != CU_STREAM_LEGACY && is_captured(c->stream))
		return NULL;
	bool is_new = !c->context;
	if (is_new) {
		CUcontext of = NULL;
		/* It runs on the stream's GPU, and so must the events be of the stream's context. */
		*entered = vgpu_enter_stream(c->stream);
		if (REAL(cuCtxGetCurrent)(&c->context) != CUDA_SUCCESS || !c->context)
			return NULL;
		c->is_current = true;
		is_new = is_object(c->stream) && REAL(cuStreamGetCtx)(c->stream, &of) == CUDA_SUCCESS && of == c->context;
	}
	mutex_lock(lock_of(state));
	struct launch *launch = admit(state, c);
	if (launch && is_new)
		remember_stream(&state->throttle, c->stream, c->context);
	mutex_unlock(lock_of(state));
	return launch;
}

struct passage throttle_enter(struct work work, CUstream stream)
{
	struct passage passage = { .stream = stream };
	struct candidate candidate = { work, stream, NULL, false };
	const struct quota *quota = vgpu_quota();
	struct state *state = vgpu_state();

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
	candidate.context = quota ? known_context(&state->throttle, stream) : NULL;
	if (candidate.context && gpu_of(&state->throttle, candidate.context, false) < 0)
		candidate.context = NULL;
	mutex_unlock(lock_of(state));
	if (state->throttle.off)
		return passage;
	bool entered = false;
	passage.launch = enter(state, &candidate, &entered);
	if (passage.launch && passage.launch->timed) {
		bool legacy = !stream || stream == CU_STREAM_LEGACY;
		if (!entered && !candidate.is_current)
			entered = vgpu_enter_context(candidate.context);
		passage.context = entered ? candidate.context : NULL;
		passage.timed = !(legacy && is_captured(stream)) && busy_before(passage.launch, stream);
	}
	vgpu_leave_stream(entered);
	if (passage.timed && passage.launch->first && !state->throttle.blocking)
		passage.began_ns = now_ns();
	return passage;
}

void throttle_leave(const struct passage *passage, CUresult result)
{
	if (!passage->launch)
		return;
	int64_t host_ns = passage->began_ns ? now_ns() - passage->began_ns : 0;
	bool entered = passage->timed && passage->context && REAL(cuCtxPushCurrent_v2)(passage->context) == CUDA_SUCCESS;
	busy_after(passage->launch, passage->stream, passage->timed, result == CUDA_SUCCESS, host_ns);
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
	for (int i = 0; i < THROTTLE_STREAMS; i++)
		if (state->throttle.streams[i].context == context)
			state->throttle.streams[i].stream = NULL;
	mutex_unlock(lock_of(state));
}

void throttle_stream_gone(CUstream stream)
{
	struct state *state = vgpu_state();
	if (!state || !is_object(stream))
		return;
	mutex_lock(lock_of(state));
	struct throttle_state *t = &state->throttle;
	unsigned i = place_of_stream(stream);
	if (t->streams[i].stream == stream)
		t->streams[i].stream = NULL;
	for (i = 0; i < QUOTA_GPUS; i++)
		for (struct busy *b = t->gpus[i] ? t->gpus[i]->contexts : NULL; b; b = b->next)
			busy_forget_stream(b, stream);
	mutex_unlock(lock_of(state));
}
