/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Find out which of the tenant's GPUs wait for each other.
 */
#include "throttle/peers.h"

#include "throttle/seat.h"
#include "throttle/times.h"
#include "throttle/words.h"

#define UNUSUAL_NS (NS_PER_SECOND / 4)	/* if the usual difference was not seen for this long, launch counts are uneven */
#define ALIKE 8				/* if this many turns in a row begin with the same difference, it becomes the usual one */

/* Learn the usual difference of launches from the start of a turn. */
static void begin_turn(struct peer *peer, int64_t ahead, uint64_t launches)
{
	if (launches != peer->turn)
		peer->alike = ahead == peer->begun ? peer->alike + 1 : 1;
	peer->turn = launches;
	peer->begun = ahead;
	if (peer->alike >= ALIKE || !peer->usual_ns)
		peer->usual = ahead;
}

static void compare_launches(struct peer *peer, uint64_t there, uint64_t here, bool begins, int64_t now)
{
	int64_t ahead = (int64_t)(there - here);
	if (begins)
		begin_turn(peer, ahead, here);
	bool was_more = peer->ahead > peer->usual, is_more = ahead > peer->usual;
	if (ahead == peer->usual || is_more != was_more)
		peer->usual_ns = now;
	peer->ahead = ahead;
}

/* Return whether each step has more launches on one GPU than on the other. */
static bool is_uneven(const struct peer *peer, int64_t now) { return now - peer->usual_ns > UNUSUAL_NS; }

/* Return whether the peer got more launches than this GPU. The counts at the start of a single turn prove little,
 * because the turn may start in the middle of a step. This GPU would then appear to be behind, and would start its next
 * step in another tenant's turn. */
static bool is_ahead(const struct peer *peer, int64_t now)
{
	int64_t more = peer->ahead - (is_uneven(peer, now) ? peer->begun : peer->usual);
	return more > 0 && more <= BUSY_RING;
}

static bool has_work(const struct throttle_gpu *g)
{
	for (const struct busy *b = g->contexts; b; b = b->next)
		if (!busy_is_idle(b))
			return true;
	return false;
}

void look_at_peers(struct throttle *t, int own, bool begins, int64_t now)
{
	struct throttle_gpu *g = t->gpus[own];
	int64_t paid = turnstile_paid(seat_of(g), now), least = paid;
	uint64_t held = 0;
	bool late = false, uneven = false;
	g->hurry = g->has_peers = g->together = g->behind = false;
	uint64_t launches = atomic_load(&seat_of(g)->launches);
	for (int i = 0; i < t->quota->gpu_count; i++) {
		const struct quota_gpu *gpu = &t->quota->gpus[i];
		struct peer *peer = &t->peers[i];
		if (i == own || quota_is_unthrottled(t->quota, i) || gpu->seat < 0)
			continue;
		if (!peer->looked) {
			/* If there is an agent, the next launch queries it. Ignore the peer until then. */
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
		bool works = atomic_load(&there->due) != 0;
		compare_launches(peer, atomic_load(&there->launches), launches, begins && !works, now);
		uneven = uneven || is_uneven(peer, now);
		bool behind = works && is_ahead(peer, now);
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
	/* The peer may be late because of current work here. The next launch then belongs to the next step. An early
	 * start would take this GPU from another tenant that has the peer's GPU, and each tenant would continue with
	 * one GPU. With uneven counts, lateness is the only evidence. */
	if (!late || (!uneven && has_work(g)))
		g->idle_hurry_ns = now;
	g->hurry = g->hurry || now - g->idle_hurry_ns > HURRY_NS;
	g->peers_held_ns = held;
	g->lead_ns = within(paid - least, 0, LEAD_MAX_NS);
	if (atomic_load(&seat_of(g)->lead) != g->lead_ns)
		atomic_store(&seat_of(g)->lead, g->lead_ns);
}
