/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Limit how long a tenant may make another tenant wait.
 */
#include "throttle/doubts.h"

#include "throttle/times.h"

static int64_t since_last_look(struct turnstile *t, int64_t now)
{
	int64_t gap = now - t->waited_ns;
	t->waited_ns = now;
	return gap > 0 && gap <= DOUBT_GAP_NS ? gap : 0;
}

/* Return how long a tenant with these terms may have the GPU while another tenant with this priority and with credit
 * waits: for a lease and a turn. A more urgent tenant may also use its saved credit. */
static int64_t turn_at_most(struct terms terms, int32_t priority)
{
	int64_t saved = IDLE_CREDIT_NS * terms.percent / (terms.percent < 100 ? 100 - terms.percent : 1);
	return LEASE_MAX_NS + QUANTUM_NS + (terms.priority < priority ? saved : 0);
}

void turnstile_waits_for(struct turnstile *t, int seat, int other, struct claim own, int64_t now)
{
	struct doubt *d = &t->doubts[other];
	struct terms terms = turnstile_terms(t, other);
	int64_t gap = since_last_look(t, now);
	/* A more urgent tenant may delay this one for several turns in a row, any other tenant for one turn. */
	if (t->holder != other + 1 && terms.priority < own.priority) d->waited_ns = 0;
	t->holder = other + 1;
	t->yielded_ns = 0;
	if (other == seat || !own.credit) return;
	d->waited_ns += gap;
	if (d->waited_ns <= turn_at_most(terms, own.priority)) return;
	d->until_ns = now + DOUBT_NS;
	d->waited_ns = 0;
}

/* Return whether this process ignores another tenant's lease that other processes respect. */
static bool leaves_out_any(const struct turnstile *t, int64_t now)
{
	for (int i = 0; i < t->count; i++) {
		const struct doubt *d = &t->doubts[i];
		if (t->seats[i] && (now < d->until_ns || (d->dead && atomic_load(&t->seats[i]->lease) == d->dead))) return true;
	}
	return false;
}

bool turnstile_yields_to(struct turnstile *t, int other, int64_t now)
{
	t->yielded_ns += since_last_look(t, now);
	t->holder = 0;
	if (t->yielded_ns <= QUANTUM_NS) return true;
	t->yielded_ns = 0;
	/* Do not blame a tenant that waits for a tenant that is ignored here. */
	if (!leaves_out_any(t, now)) t->doubts[other].until_ns = now + DOUBT_NS;
	return false;
}

void turnstile_had_turn(struct turnstile *t, int64_t now)
{
	t->holder = 0;
	t->yielded_ns = 0;
	/* If a tenant takes the lease at each turn, another turn does not clear the doubt. */
	if (t->lost_ns && now - t->lost_ns < LEASE_MAX_NS) return;
	for (int i = 0; i < TURNSTILE_SEATS; i++) t->doubts[i].waited_ns = 0;
}
