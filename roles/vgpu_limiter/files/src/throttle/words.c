/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Write the fields of a tenant's seat, and validate the fields of other tenants.
 */
#include "throttle/words.h"

#include "throttle/times.h"

bool turnstile_adopt(struct turnstile_file *t)
{
	if (atomic_load(&t->magic) == 0) {
		/* Several processes may get here at once. All write the same value. */
		atomic_store(&t->version, TURNSTILE_VERSION);
		atomic_store(&t->size, sizeof *t);
		atomic_store(&t->magic, TURNSTILE_MAGIC);
	}
	return atomic_load(&t->magic) == TURNSTILE_MAGIC && atomic_load(&t->version) == TURNSTILE_VERSION &&
		atomic_load(&t->size) == sizeof *t;
}

void turnstile_show(struct seat *s, struct terms terms)
{
	/* These fields are read often and rarely change. Store only changed values, because a store takes the cache line
	 * from all readers. */
	if (atomic_load(&s->percent) != terms.percent) atomic_store(&s->percent, terms.percent);
	if (atomic_load(&s->policy) != terms.policy) atomic_store(&s->policy, terms.policy);
	if (atomic_load(&s->priority) != terms.priority) atomic_store(&s->priority, terms.priority);
}

static bool is_ahead(const _Atomic int64_t *word, int64_t now, int64_t most)
{
	int64_t until = atomic_load_explicit(word, memory_order_relaxed);
	return until > now && until <= most + SKEW_NS;
}

/* Return the latest plausible value of active_until. A tenant in debt announces that it will want the GPU after it has
 * paid. */
static int64_t active_at_most(const struct seat *s, int64_t now)
{
	return later(now, turnstile_paid(s, now) + RESUME_MOST_NS) + ACTIVE_NS;
}

bool turnstile_is_active(const struct seat *s, int64_t now)
{
	return atomic_load_explicit(&s->active_until, memory_order_relaxed) > now
		&& is_ahead(&s->active_until, now, active_at_most(s, now));
}

bool turnstile_is_waiting(const struct seat *s, int64_t now) { return is_ahead(&s->waiting_until, now, now + GRACE_NS); }

bool turnstile_is_overdue(const struct seat *s, int64_t now)
{
	int64_t due = atomic_load_explicit(&s->due, memory_order_relaxed);
	return due > now - OVERDUE_MOST_NS && due < now - OVERDUE_NS;
}

bool turnstile_is_working(const struct seat *s, int64_t now)
{
	int64_t due = atomic_load_explicit(&s->due, memory_order_relaxed);
	return due > now && due < now + OVERDUE_MOST_NS;
}

static void raise_to(_Atomic int64_t *word, int64_t value, int64_t most)
{
	int64_t old = atomic_load_explicit(word, memory_order_relaxed);
	if (old < value || old > most + SKEW_NS) atomic_store_explicit(word, value, memory_order_relaxed);
}

void turnstile_set_active(struct seat *s, int64_t now, int64_t until)
{
	raise_to(&s->active_until, until, later(until, active_at_most(s, now)));
}

void turnstile_set_waiting(struct seat *s, int64_t now, int64_t until) { raise_to(&s->waiting_until, until, now + GRACE_NS); }
