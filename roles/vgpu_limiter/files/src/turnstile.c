/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The turnstile of a GPU: see turnstile.h.
 */
#include "turnstile.h"

static int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t earlier(int64_t a, int64_t b) { return a < b ? a : b; }

int64_t turnstile_wall(int64_t busy, unsigned percent)
{
	if (percent == 0) percent = 1;
	busy = earlier(later(busy, -DEBT_MAX_NS), DEBT_MAX_NS);
	return busy * 100 / percent;
}

int64_t turnstile_charge(int64_t paid_until, int64_t asked, int64_t now, int64_t busy, unsigned percent, int64_t most)
{
	int64_t next = later(paid_until, asked - IDLE_CREDIT_NS) + turnstile_wall(busy, percent);
	return earlier(next, later(paid_until, now + most));
}

int64_t turnstile_resume(unsigned percent) { return earlier(turnstile_wall(RESUME_NS, percent), RESUME_MOST_NS); }

int turnstile_order(struct claim a, struct claim b)
{
	if (a.credit != b.credit) return a.credit ? 1 : -1;
	if (a.priority != b.priority) return a.priority < b.priority ? 1 : -1;
	return 0;
}

bool turnstile_before(struct claim a, struct claim b)
{
	int order = turnstile_order(a, b);
	return order ? order > 0 : a.paid_until < b.paid_until;
}

bool turnstile_adopt(struct turnstile *t)
{
	if (atomic_load(&t->magic) == 0) {
		/* Several processes may do this at once: all write the same. */
		atomic_store(&t->version, TURNSTILE_VERSION);
		atomic_store(&t->size, sizeof *t);
		atomic_store(&t->magic, TURNSTILE_MAGIC);
	}
	return atomic_load(&t->magic) == TURNSTILE_MAGIC && atomic_load(&t->version) == TURNSTILE_VERSION &&
		atomic_load(&t->size) == sizeof *t;
}

struct claim turnstile_claim(const struct turnstile *t, int seat, int64_t now, bool holds)
{
	const struct seat *s = &t->seats[seat];
	int64_t paid_until = atomic_load(&s->paid_until);
	int64_t needs = !holds && atomic_load(&s->policy) == POLICY_BURST ? turnstile_resume(atomic_load(&s->percent)) : 0;
	return (struct claim){paid_until + needs <= now, atomic_load(&s->priority), paid_until};
}

bool turnstile_rival(const struct turnstile *t, int seat, int64_t now, struct claim *rival)
{
	bool found = false;
	for (int i = 0; i < TURNSTILE_SEATS; i++) {
		if (i == seat || atomic_load_explicit(&t->seats[i].waiting_until, memory_order_relaxed) <= now) continue;
		struct claim claim = turnstile_claim(t, i, now, false);
		if (!found || turnstile_before(claim, *rival)) *rival = claim;
		found = true;
	}
	return found;
}

bool turnstile_contended(const struct turnstile *t, int seat, int64_t now)
{
	for (int i = 0; i < TURNSTILE_SEATS; i++)
		if (i != seat && atomic_load_explicit(&t->seats[i].active_until, memory_order_relaxed) > now) return true;
	return false;
}

void turnstile_spend(struct turnstile *t, int seat, int64_t asked, int64_t now, int64_t busy)
{
	struct seat *s = &t->seats[seat];
	int64_t most = atomic_load(&s->policy) == POLICY_BURST ? BORROW_MAX_NS : DEBT_MAX_NS;
	int64_t old = atomic_load(&s->paid_until), new;
	do
		new = turnstile_charge(old, asked, now, busy, atomic_load(&s->percent), most);
	while (!atomic_compare_exchange_weak(&s->paid_until, &old, new));
}

/* --- the lease --- */

#define MICROSECONDS ((UINT64_C(1) << 48) - 1)

static uint64_t lease_word(unsigned process, int64_t now, int64_t until)
{
	return (uint64_t)process << 48 | ((uint64_t)(earlier(until, now + LEASE_MAX_NS) / 1000) & MICROSECONDS);
}

static unsigned lease_holder(uint64_t word, int64_t now)
{
	int64_t until = (int64_t)(word & MICROSECONDS) * 1000;
	/* One that ends in the far future was written by a broken hand, or before the clock began anew. */
	return until > now && until <= now + 2 * LEASE_MAX_NS ? (unsigned)(word >> 48) : 0;
}

unsigned turnstile_holder(const struct turnstile *t, int64_t now) { return lease_holder(atomic_load(&t->lease), now); }

unsigned turnstile_last_holder(const struct turnstile *t) { return (unsigned)(atomic_load(&t->lease) >> 48); }

bool turnstile_take(struct turnstile *t, unsigned process, int64_t now, int64_t until, unsigned dead)
{
	uint64_t old = atomic_load(&t->lease);
	unsigned holder = lease_holder(old, now);
	if (holder != 0 && holder != process && holder != dead) return false;
	if (!atomic_compare_exchange_strong(&t->lease, &old, lease_word(process, now, until))) return false;
	atomic_store(&t->lease_since, now);
	return true;
}

bool turnstile_renew(struct turnstile *t, unsigned process, int64_t now, int64_t until)
{
	uint64_t old = atomic_load(&t->lease), new = lease_word(process, now, until);
	if (old >> 48 != process) return false;
	if (old >= new) return true;
	return atomic_compare_exchange_strong(&t->lease, &old, new);
}

void turnstile_give(struct turnstile *t, unsigned process)
{
	uint64_t old = atomic_load(&t->lease);
	if (old >> 48 == process) atomic_compare_exchange_strong(&t->lease, &old, 0);
}
