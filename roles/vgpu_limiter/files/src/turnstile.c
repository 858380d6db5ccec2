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
	percent = percent == 0 ? 1 : percent > 100 ? 100 : percent;
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
	if (a.place != b.place) return a.place < b.place ? 1 : -1;
	return 0;
}

uint32_t turnstile_place(const char *tenant, int64_t now)
{
	uint64_t slot = (uint64_t)now / QUANTUM_NS, hash = UINT64_C(14695981039346656037) ^ (slot >> 1);
	for (int i = 0; i < TURNSTILE_TENANT && tenant[i]; i++) hash = (hash ^ (unsigned char)tenant[i]) * UINT64_C(1099511628211);
	hash ^= hash >> 29;
	hash *= UINT64_C(0xbf58476d1ce4e5b9);
	return (uint32_t)(hash >> 32) ^ (slot & 1 ? UINT32_MAX : 0);
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

/* --- words of seats, bounded --- */

void turnstile_show(struct turnstile *t, int seat, struct terms terms)
{
	struct seat *s = &t->seats[seat];
	/* Looked at often and seldom changed: a store would take the cache line from all others. */
	if (atomic_load(&s->percent) != terms.percent) atomic_store(&s->percent, terms.percent);
	if (atomic_load(&s->policy) != terms.policy) atomic_store(&s->policy, terms.policy);
	if (atomic_load(&s->priority) != terms.priority) atomic_store(&s->priority, terms.priority);
}

struct terms turnstile_terms(const struct turnstile *t, int seat)
{
	const struct seat *s = &t->seats[seat];
	struct terms terms = {atomic_load(&s->percent), atomic_load(&s->policy), atomic_load(&s->priority)};
	if (terms.percent < 1 || terms.percent > 100) terms.percent = 1;
	if (terms.policy > POLICY_BURST) terms.policy = POLICY_FIXED;
	if (terms.priority == INT32_MIN) terms.priority = INT32_MAX; /* no quota can say it */
	return terms;
}

static int64_t believable_debt(int64_t paid_until, int64_t now)
{
	return paid_until > now + DEBT_MAX_NS + SKEW_NS ? now : later(paid_until, 0);
}

int64_t turnstile_paid(const struct turnstile *t, int seat, int64_t now)
{
	return believable_debt(atomic_load(&t->seats[seat].paid_until), now);
}

static bool is_ahead(const _Atomic int64_t *word, int64_t now, int64_t most)
{
	int64_t until = atomic_load_explicit(word, memory_order_relaxed);
	return until > now && until <= most + SKEW_NS;
}

/* Who owes says that it will want the GPU again when it has paid. */
static int64_t active_at_most(const struct turnstile *t, int seat, int64_t now)
{
	return later(now, turnstile_paid(t, seat, now) + RESUME_MOST_NS) + ACTIVE_NS;
}

bool turnstile_is_active(const struct turnstile *t, int seat, int64_t now)
{
	const _Atomic int64_t *word = &t->seats[seat].active_until;
	return atomic_load_explicit(word, memory_order_relaxed) > now && is_ahead(word, now, active_at_most(t, seat, now));
}

bool turnstile_is_waiting(const struct turnstile *t, int seat, int64_t now)
{
	return is_ahead(&t->seats[seat].waiting_until, now, now + GRACE_NS);
}

bool turnstile_is_overdue(const struct turnstile *t, int seat, int64_t now)
{
	int64_t due = atomic_load_explicit(&t->seats[seat].due, memory_order_relaxed);
	return due > now - OVERDUE_MOST_NS && due < now - OVERDUE_NS;
}

bool turnstile_is_working(const struct turnstile *t, int seat, int64_t now)
{
	int64_t due = atomic_load_explicit(&t->seats[seat].due, memory_order_relaxed);
	return due > now && due < now + OVERDUE_MOST_NS;
}

bool turnstile_has_slot(const struct turnstile *t, int seat, int64_t now)
{
	uint32_t place = turnstile_place(t->seats[seat].tenant, now);
	for (int i = 0; i < TURNSTILE_SEATS; i++)
		if (i != seat && turnstile_is_active(t, i, now) && turnstile_place(t->seats[i].tenant, now) < place) return false;
	return true;
}

static void raise_to(_Atomic int64_t *word, int64_t value, int64_t most)
{
	int64_t old = atomic_load_explicit(word, memory_order_relaxed);
	if (old < value || old > most + SKEW_NS) atomic_store_explicit(word, value, memory_order_relaxed);
}

void turnstile_set_active(struct turnstile *t, int seat, int64_t now, int64_t until)
{
	raise_to(&t->seats[seat].active_until, until, later(until, active_at_most(t, seat, now)));
}

void turnstile_set_waiting(struct turnstile *t, int seat, int64_t now, int64_t until)
{
	raise_to(&t->seats[seat].waiting_until, until, now + GRACE_NS);
}

int64_t turnstile_limit_debt(struct turnstile *t, int seat, int64_t now, int64_t most)
{
	_Atomic int64_t *word = &t->seats[seat].paid_until;
	int64_t old = atomic_load(word), paid;
	do {
		paid = earlier(believable_debt(old, now), most);
		if (old <= paid) return later(old, 0);
	} while (!atomic_compare_exchange_weak(word, &old, paid));
	return paid;
}

struct claim turnstile_claim(const struct turnstile *t, int seat, struct terms terms, int64_t now, bool holds)
{
	int64_t lead = atomic_load(&t->seats[seat].lead);
	int64_t paid_until = turnstile_paid(t, seat, now) - earlier(later(lead, 0), LEAD_MAX_NS);
	int64_t needs = !holds && terms.policy == POLICY_BURST ? turnstile_resume(terms.percent) : 0;
	return (struct claim){paid_until + needs <= now, terms.priority, paid_until,
		turnstile_place(t->seats[seat].tenant, now)};
}

bool turnstile_rival(const struct turnstile *t, int seat, int64_t now, struct claim *rival)
{
	bool found = false;
	for (int i = 0; i < TURNSTILE_SEATS; i++) {
		if (i == seat || !turnstile_is_waiting(t, i, now)) continue;
		struct claim claim = turnstile_claim(t, i, turnstile_terms(t, i), now, false);
		if (!found || turnstile_before(claim, *rival)) *rival = claim;
		found = true;
	}
	return found;
}

bool turnstile_contended(const struct turnstile *t, int seat, int64_t now)
{
	for (int i = 0; i < TURNSTILE_SEATS; i++)
		if (i != seat && turnstile_is_active(t, i, now)) return true;
	return false;
}

int64_t turnstile_most_debt(struct terms terms) { return terms.policy == POLICY_BURST ? BORROW_MAX_NS : DEBT_MAX_NS; }

void turnstile_spend(struct turnstile *t, int seat, struct terms terms, int64_t asked, int64_t now, int64_t busy)
{
	_Atomic int64_t *word = &t->seats[seat].paid_until;
	int64_t old = atomic_load(word), new;
	do
		new = turnstile_charge(believable_debt(old, now), asked, now, busy, terms.percent, turnstile_most_debt(terms));
	while (!atomic_compare_exchange_weak(word, &old, new));
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
	/* One that ends in the far future was written by a broken hand, or before the clock was reset. */
	return until > now && until <= now + LEASE_MAX_NS + SKEW_NS ? (unsigned)(word >> 48) : 0;
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
