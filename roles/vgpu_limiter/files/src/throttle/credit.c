/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Charge GPU time to a share, and limit debts.
 */
#include "throttle/credit.h"

#include "throttle/times.h"

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

static int64_t believable_debt(int64_t paid_until, int64_t now)
{
	return paid_until > now + DEBT_MAX_NS + SKEW_NS ? now : later(paid_until, 0);
}

int64_t turnstile_paid(const struct seat *s, int64_t now) { return believable_debt(atomic_load(&s->paid_until), now); }

int64_t turnstile_limit_debt(struct seat *s, int64_t now, int64_t most)
{
	int64_t old = atomic_load(&s->paid_until), paid;
	do {
		paid = earlier(believable_debt(old, now), most);
		if (old <= paid) return later(old, 0);
	} while (!atomic_compare_exchange_weak(&s->paid_until, &old, paid));
	return paid;
}

int64_t turnstile_most_debt(struct terms terms) { return terms_may_borrow_freely(terms) ? BORROW_MAX_NS : DEBT_MAX_NS; }

void turnstile_spend(struct seat *s, struct terms terms, int64_t asked, int64_t now, int64_t busy)
{
	int64_t old = atomic_load(&s->paid_until), new;
	do
		new = turnstile_charge(believable_debt(old, now), asked, now, busy, terms.percent, turnstile_most_debt(terms));
	while (!atomic_compare_exchange_weak(&s->paid_until, &old, new));
}
