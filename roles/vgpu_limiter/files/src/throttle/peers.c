/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Which of the tenant's GPUs wait for which.
 */
#include "throttle/peers.h"

#include "throttle/seat.h"
#include "throttle/times.h"
#include "throttle/words.h"

void look_at_peers(struct throttle *t, int own, bool begins, int64_t now)
{
	struct throttle_gpu *g = t->gpus[own];
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
