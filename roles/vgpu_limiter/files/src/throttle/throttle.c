/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The throttle of launches. A launch waits, starts, and is then recorded as in flight.
 *
 * Threads wait without holding a lock. A thread that waits for a lease sleeps until the lease is released or ends
 * (turnstile_sleep). Launches of tenants with a share of 100 do not reach this code.
 */
#include "throttle/throttle.h"

#include <stdlib.h>
#include <time.h>

#include "driver/reals.h"
#include "driver/streams.h"
#include "process/state.h"
#include "throttle/admission.h"
#include "throttle/busy.h"
#include "throttle/claims.h"
#include "throttle/colocate.h"
#include "throttle/contexts.h"
#include "throttle/following.h"
#include "throttle/sampling.h"
#include "throttle/stream_contexts.h"
#include "throttle/turn.h"
#include "throttle/usage.h"

#define NAP_NS (50 * NS_PER_MS)			/* maximum sleep. The quota may change during a sleep */
#define PEERS_NAP_NS (NS_PER_MS / 2)		/* maximum sleep if another GPU of the tenant may start to wait for this one */

/* The per-thread default streams of all threads have the same handle. This variable's address distinguishes them. */
static __thread char own_stream __attribute__((tls_model("initial-exec")));

static CUstream meant_stream(CUstream stream) { return stream == CU_STREAM_PER_THREAD ? (CUstream)&own_stream : stream; }

/* Return the throttle's state, or NULL without memory. A child of fork creates its own. */
static struct throttle *throttle_of(struct state *state)
{
	struct throttle *t = atomic_load_explicit(&state->throttle, memory_order_acquire), *none = NULL;
	if (LIKELY(t))
		return t;
	if (!(t = calloc(1, sizeof *t)) || atomic_compare_exchange_strong(&state->throttle, &none, t))
		return t;
	free(t);
	return none;
}

/* Apply changes of the quota and the agent. Requires the lock. */
static void follow(struct state *state, struct throttle *t, const struct quota *quota)
{
	atomic_store(&state->unthrottled, !follow_quota(t, quota));
}

/* Sleep. Call without the lock. If a sleep on a watched lease fails, sleep for `poll` instead. */
static enum watched rest(struct watch watch, int64_t ns, int64_t poll)
{
	enum watched watched = watch.half ? turnstile_sleep(watch, ns) : WATCHED_NOT;
	struct timespec time = { 0, (long)(watch.half ? poll : ns) };
	if (watched == WATCHED_NOT)
		clock_nanosleep(CLOCK_MONOTONIC, 0, &time, NULL);
	return watched;
}

static void nap(struct throttle *t, struct throttle_gpu *g, int64_t ns, enum reason reason)
{
	int64_t began = now_ns(), poll = poll_ns(g);
	int64_t most = g->has_peers ? PEERS_NAP_NS : NAP_NS;
	struct watch watch = g->watches ? g->watch : (struct watch){ NULL, 0 };
	bool first = g->sleepers++ == 0;
	mutex_unlock(&t->lock);
	enum watched watched = rest(watch, ns < most ? ns : most, poll);
	mutex_lock(&t->lock);
	g->woken = watched == WATCHED_GIVEN;
	g->sleepers--;
	/* Add the time once if several threads sleep at the same time. Do not add a wait for a full queue. */
	if (first && reason != FOR_THE_GPU && g->seat >= 0)
		atomic_fetch_add(&seat_of(g)->throttled_ns, (uint64_t)(now_ns() - began));
}

/* A launch that waits for admission. */
struct candidate {
	struct work work;
	CUstream stream;
	CUcontext context;
	bool is_current;	/* the thread's current context is the stream's context */
};

/* Admit a launch. Requires the lock, which is also held on return. Returns NULL for a launch that is not throttled. */
static struct launch *admit(struct state *state, struct throttle *t, const struct candidate *c)
{
	for (;;) {
		const struct quota *quota = t->quota;
		int i = quota ? gpu_of_context(t, c->context, c->is_current) : -1;
		if (i < 0 || quota_is_unthrottled(quota, i))
			return NULL;
		struct throttle_gpu *g = t->gpus[i];
		if (!g)
			g = follow_start(t, quota, i, now_ns());
		struct busy *b = g && g->mine ? add_busy(g, c->context) : NULL;
		if (!b)
			return NULL;
		int64_t now = now_ns();
		if (follow_agent_is_due(t, g, now)) {
			follow_agent(t, quota, now);
			now = now_ns();
		}
		enum reason reason = FOR_NOTHING;
		int64_t wait = hold_back(t, i, b, &c->work, now, &reason);
		if (wait == 0) {
			g->progress_ns = now;	/* the next launch may start only after another STUCK_NS */
			if (busy_is_full(b))	/* the launch cannot be measured, because earlier work is stuck */
				return NULL;
			struct others before = usage_of_others(g);
			if (turnstile_last_process(g->mine, g->seat) != g->process)
				atomic_fetch_add(&seat_of(g)->passes, 1);
			/* A launch for which other GPUs may wait takes a different time at each run. */
			struct launch *launch = busy_reserve(b, &c->work, meant_stream(c->stream), before, g->has_peers, now);
			if (is_online(g->terms) && launch->ahead_ns == 0)
				colocate_found(g, now);
			if (quota->gpu_count > 1)
				atomic_fetch_add(&seat_of(g)->launches, 1);
			if (usage_is_shown(t, g))
				usage_tell_due(g);
			launch->charged = !(quota->policy == POLICY_CONTENDED && g->alone);
			if (launch->charged)
				usage_spend(g, now, now, launch->estimate_ns);
			return launch;
		}
		nap(t, g, wait, reason);
		mutex_unlock(&t->lock);
		quota = vgpu_quota();
		mutex_lock(&t->lock);
		if (quota != t->quota)
			follow(state, t, quota);
	}
}

/* Return whether the launch is captured into a graph. Returns true if this is unknown, because the launch itself will
 * then fail. */
static bool is_captured(CUstream stream)
{
	int status = CU_STREAM_CAPTURE_STATUS_NONE;
	return REAL(cuStreamIsCapturing)(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* Wait until the launch is admitted. Call without the lock. The legacy stream cannot be captured. */
static struct launch *enter(struct state *state, struct throttle *t, struct candidate *c, bool *entered)
{
	if (c->stream && c->stream != CU_STREAM_LEGACY && is_captured(c->stream))
		return NULL;
	bool is_new = !c->context;
	if (is_new) {
		CUcontext of = NULL;
		/* The launch runs on the stream's GPU, so the events need the stream's context. */
		*entered = vgpu_enter_stream(c->stream);
		if (REAL(cuCtxGetCurrent)(&c->context) != CUDA_SUCCESS || !c->context)
			return NULL;
		c->is_current = true;
		is_new = stream_is_object(c->stream) && REAL(cuStreamGetCtx)(c->stream, &of) == CUDA_SUCCESS && of == c->context;
	}
	mutex_lock(&t->lock);
	struct launch *launch = admit(state, t, c);
	if (launch && is_new)
		stream_context_is(t, c->stream, c->context);
	mutex_unlock(&t->lock);
	return launch;
}

struct passage throttle_enter(struct work work, CUstream stream)
{
	struct passage passage = { .stream = stream };
	struct candidate candidate = { work, stream, NULL, false };
	const struct quota *quota = vgpu_quota();
	struct state *state = vgpu_state();

	if (!state) {
		/* A process without a tenant never gets one, so skip this check for later launches. */
		state = atomic_load_explicit(&vgpu_state_page, memory_order_acquire);
		if (state)
			atomic_store(&state->unthrottled, 1);
		return passage;
	}
	struct throttle *t = throttle_of(state);
	if (!t)
		return passage;
	mutex_lock(&t->lock);
	if (quota != t->quota || (!quota && !state->unthrottled))
		follow(state, t, quota);
	candidate.context = quota ? stream_context(t, stream) : NULL;
	if (candidate.context && gpu_of_context(t, candidate.context, false) < 0)
		candidate.context = NULL;
	mutex_unlock(&t->lock);
	if (state->unthrottled)
		return passage;
	bool entered = false;
	passage.launch = enter(state, t, &candidate, &entered);
	if (passage.launch && passage.launch->timed) {
		bool legacy = !stream || stream == CU_STREAM_LEGACY;
		if (!entered && !candidate.is_current)
			entered = vgpu_enter_context(candidate.context);
		passage.context = entered ? candidate.context : NULL;
		passage.timed = !(legacy && is_captured(stream)) && busy_before(passage.launch, stream);
	}
	vgpu_leave_stream(entered);
	if (passage.timed && passage.launch->first && !t->blocking)
		passage.began_ns = now_ns();
	return passage;
}

void throttle_leave(const struct passage *passage, CUresult result)
{
	if (!passage->launch)
		return;
	int64_t now = now_ns(), host_ns = passage->began_ns ? now - passage->began_ns : 0;
	passage->launch->returned_ns = now;
	bool entered = passage->timed && passage->context && REAL(cuCtxPushCurrent_v2)(passage->context) == CUDA_SUCCESS;
	busy_after(passage->launch, passage->stream, passage->timed, result == CUDA_SUCCESS, host_ns);
	vgpu_leave_stream(entered);
}

/* Return the throttle's state, or NULL if this process never had a throttled launch. */
static struct throttle *used_throttle(void)
{
	struct state *state = vgpu_state();
	return state ? atomic_load_explicit(&state->throttle, memory_order_acquire) : NULL;
}

void throttle_settle(void)
{
	struct throttle *t = used_throttle();
	bool idle;
	if (!t)
		return;
	mutex_lock(&t->lock);
	for (int i = 0; i < QUOTA_GPUS; i++)
		if (t->gpus[i] && t->gpus[i]->mine)
			usage_harvest(t->gpus[i], now_ns(), &idle);
	mutex_unlock(&t->lock);
}

void throttle_waited(void)
{
	struct throttle *t = used_throttle();
	bool idle;
	if (!t)
		return;
	mutex_lock(&t->lock);
	for (int i = 0; i < QUOTA_GPUS; i++) {
		struct throttle_gpu *g = t->gpus[i];
		if (!g || !g->mine || g->seat < 0 || !is_online(g->terms))
			continue;
		int64_t now = now_ns();
		usage_harvest(g, now, &idle);
		usage_tell_due(g);
		colocate_show_online(g, now);
	}
	mutex_unlock(&t->lock);
}

void throttle_context_gone(CUcontext context)
{
	struct throttle *t = used_throttle();
	if (!t)
		return;
	mutex_lock(&t->lock);
	for (int i = 0; i < QUOTA_GPUS; i++)
		drop_busy(t->gpus[i], context);
	stream_contexts_forget(t, context);
	mutex_unlock(&t->lock);
}

void throttle_stream_gone(CUstream stream)
{
	struct throttle *t = stream_is_object(stream) ? used_throttle() : NULL;
	if (!t)
		return;
	mutex_lock(&t->lock);
	stream_context_forget(t, stream);
	for (int i = 0; i < QUOTA_GPUS; i++)
		for (struct busy *b = t->gpus[i] ? t->gpus[i]->contexts : NULL; b; b = b->next)
			sampling_forget_stream(b, stream);
	mutex_unlock(&t->lock);
}
