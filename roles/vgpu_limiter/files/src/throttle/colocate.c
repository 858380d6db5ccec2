/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Let online tenants go first, and keep offline tenants below the waterline.
 */
#include "throttle/colocate.h"

#include "throttle/claims.h"
#include "throttle/times.h"
#include "throttle/words.h"

#define ONLINE_HOLD_NS (2 * NS_PER_MS)	/* an online tenant may launch again this soon after its last work */
#define ONLINE_NAP_NS (2 * NS_PER_MS)	/* maximum time between two checks whether online work is done */
#define LEVEL_SAVED_NS (100 * NS_PER_MS)	/* maximum saved GPU time below the waterline */
#define LEVEL_OWED_NS NS_PER_SECOND	/* maximum GPU time above the waterline that is still to be made up for */
#define PROMISED_NS (20 * NS_PER_MS)	/* an online launch that waits longer is counted as late */

void colocate_look(struct throttle_gpu *g)
{
	struct turnstile *t = g->mine;
	for (int i = 0; i < t->count; i++)
		t->gives_way[i] = is_online(g->terms) && t->seats[i] && i != g->seat && is_offline(turnstile_terms(t, i));
}

void colocate_show_online(struct throttle_gpu *g, int64_t now)
{
	turnstile_set_active(seat_of(g), now, now + ONLINE_HOLD_NS);
}

/* Return until when online tenants have the GPU, or a past time if they do not have it. */
static int64_t online_until(const struct turnstile *t, int own, int64_t now)
{
	int64_t until = 0;
	for (int i = 0; i < t->count; i++) {
		if (i == own || !t->seats[i] || !is_online(turnstile_terms(t, i)))
			continue;
		const struct seat *s = t->seats[i];
		if (turnstile_is_active(s, now))
			until = later(until, atomic_load(&s->active_until));
		if (turnstile_is_working(s, now))
			until = later(until, atomic_load(&s->due) + ONLINE_HOLD_NS);
	}
	return until;
}

/* Update how much GPU time is left below the waterline. A tenant may count its use some time after the work. The
 * counters are not trusted, so at most the elapsed time counts as use, and the rest counts later. */
static int64_t level(struct throttle_gpu *g, int waterline, int64_t now)
{
	uint64_t used = 0;
	for (int i = 0; i < g->mine->count; i++)
		if (g->mine->seats[i])
			used += atomic_load_explicit(&g->mine->seats[i]->used_ns, memory_order_relaxed);
	if (g->level_at) {
		int64_t elapsed = now - g->level_at, grown = within((int64_t)(used - g->level_used), 0, LEVEL_OWED_NS);
		int64_t counted = earlier(grown, elapsed), left = g->level_ns + elapsed * waterline / 100 - counted;
		g->level_ns = within(left, -LEVEL_OWED_NS, LEVEL_SAVED_NS);
		g->level_used = used - (uint64_t)(grown - counted);
	} else {
		g->level_used = used;
	}
	g->level_at = now;
	return g->level_ns;
}

int64_t colocate_wait(struct throttle_gpu *g, int waterline, int64_t in_flight, int64_t now)
{
	int64_t until = online_until(g->mine, g->seat, now), left = level(g, waterline, now) - in_flight;
	if (until > now) {
		if (!g->gives_way)
			atomic_fetch_add(&seat_of(g)->gave_way, 1);
		g->gives_way = true;
		return within(until - now, POLL_NS / 2, ONLINE_NAP_NS);
	}
	g->gives_way = false;
	return left < 0 ? within(-left * 100 / waterline, POLL_NS / 2, ONLINE_NAP_NS) : 0;
}

uint64_t colocate_shared_ns(const struct throttle_gpu *g)
{
	uint64_t sum = 0;
	for (int i = 0; is_colocated(g->terms) && i < g->mine->count; i++) {
		if (i == g->seat || !g->mine->seats[i])
			continue;
		struct terms terms = turnstile_terms(g->mine, i);
		if (is_offline(g->terms) ? is_online(terms) : is_offline(terms))
			sum += atomic_load_explicit(&g->mine->seats[i]->used_ns, memory_order_relaxed);
	}
	return sum;
}

/* Count an online launch without other work in flight, which waits this long for an offline kernel. */
static void count_wait(struct throttle_gpu *g, int64_t ns)
{
	static const int64_t bounds[TURNSTILE_BOUNDS] = { NS_PER_MS, 2 * NS_PER_MS, 5 * NS_PER_MS, 10 * NS_PER_MS, 50 * NS_PER_MS };
	struct seat *s = seat_of(g);
	if (ns > 0) {
		atomic_fetch_add(&s->waits, 1);
		atomic_fetch_add(&s->waits_ns, (uint64_t)ns);
	}
	if (ns > PROMISED_NS)
		atomic_fetch_add(&s->late, 1);
	if (s != g->pages.own)
		return;
	struct seat_page *page = (struct seat_page *)s;
	atomic_fetch_add(&page->starts, 1);
	for (int i = 0; i < TURNSTILE_BOUNDS && ns > bounds[i]; i++)
		atomic_fetch_add(&page->longer[i], 1);
}

void colocate_found(struct throttle_gpu *g, int64_t now)
{
	int64_t due = now;
	g->shared = false;
	for (int i = 0; i < g->mine->count; i++) {
		int64_t end = g->mine->gives_way[i] ? atomic_load(&g->mine->seats[i]->due) : 0;
		if (end <= now - OVERDUE_MOST_NS || end >= now + OVERDUE_MOST_NS)
			continue;
		g->shared = true;
		due = later(due, end);
	}
	/* Both kernels run at the same time and take longer than usual. */
	if (g->shared)
		atomic_fetch_add(&seat_of(g)->passes, 1);
	count_wait(g, due - now);
}
