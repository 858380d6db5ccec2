/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Order the claims of tenants in each time slot.
 */
#include "throttle/claims.h"

#include "throttle/times.h"
#include "throttle/words.h"

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

static const char *tenant_of(const struct turnstile *t, int seat)
{
	return t->terms ? t->terms->seats[seat].tenant : t->seats[seat]->tenant;
}

void turnstile_count(struct turnstile *t)
{
	int count = TURNSTILE_SEATS;
	while (count > 0 && !(t->seats[count - 1] && tenant_of(t, count - 1)[0])) count--;
	t->count = count;
}

struct terms turnstile_terms(const struct turnstile *t, int seat)
{
	const struct seat *s = t->seats[seat];
	struct terms terms = {atomic_load(&s->percent), atomic_load(&s->policy), atomic_load(&s->priority)};
	if (t->terms)
		terms = (struct terms){atomic_load(&t->terms->seats[seat].percent), atomic_load(&t->terms->seats[seat].policy),
			atomic_load(&t->terms->seats[seat].priority)};
	if (terms.percent < 1 || terms.percent > 100) terms.percent = 1;
	if (terms.policy > POLICY_COLOCATE) terms.policy = POLICY_FIXED;
	if (terms.priority == INT32_MIN) terms.priority = INT32_MAX; /* a value that no valid quota has */
	return terms;
}

bool turnstile_has_slot(const struct turnstile *t, int seat, int64_t now)
{
	uint32_t place = turnstile_place(tenant_of(t, seat), now);
	for (int i = 0; i < t->count; i++)
		if (turnstile_counts(t, i, seat, now) && turnstile_is_active(t->seats[i], now) && turnstile_place(tenant_of(t, i), now) < place)
			return false;
	return true;
}

struct claim turnstile_claim(const struct turnstile *t, int seat, struct terms terms, int64_t now, bool holds)
{
	const struct seat *s = t->seats[seat];
	int64_t paid_until = turnstile_paid(s, now) - earlier(later(atomic_load(&s->lead), 0), LEAD_MAX_NS);
	int64_t needs = !holds && terms_may_borrow_freely(terms) ? turnstile_resume(terms.percent) : 0;
	return (struct claim){paid_until + needs <= now, terms.priority, paid_until, turnstile_place(tenant_of(t, seat), now)};
}

int turnstile_rival(const struct turnstile *t, int seat, int64_t now, struct claim *rival)
{
	int found = -1;
	for (int i = 0; i < t->count; i++) {
		if (!turnstile_counts(t, i, seat, now) || !turnstile_is_waiting(t->seats[i], now)) continue;
		struct claim claim = turnstile_claim(t, i, turnstile_terms(t, i), now, false);
		if (found >= 0 && !turnstile_before(claim, *rival)) continue;
		*rival = claim;
		found = i;
	}
	return found;
}

bool turnstile_contended(const struct turnstile *t, int seat, int64_t now)
{
	for (int i = 0; i < t->count; i++)
		if (turnstile_counts(t, i, seat, now) && turnstile_is_active(t->seats[i], now)) return true;
	return false;
}

uint64_t turnstile_passes(const struct turnstile *t)
{
	uint64_t sum = 0;
	for (int i = 0; i < t->count; i++)
		if (t->seats[i]) sum += atomic_load_explicit(&t->seats[i]->passes, memory_order_relaxed);
	return sum;
}
