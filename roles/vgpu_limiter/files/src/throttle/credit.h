/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Credit: what a tenant's share has paid for, by one number in its seat (paid_until).
 */
#ifndef CREDIT_H
#define CREDIT_H

#include "formats/turnstile.h"

/* What a tenant's quota says of its share of a GPU. */
struct terms {
	uint32_t percent;
	uint32_t policy;
	int32_t priority;
};

/* --- arithmetic, without a clock --- */

/* The new paid_until after `busy` ns of GPU time that were asked for at `asked` (below 0: it was less than had been
 * charged before); not more than `most` after `now`. */
int64_t turnstile_charge(int64_t paid_until, int64_t asked, int64_t now, int64_t busy, unsigned percent, int64_t most);
/* How much wall time pays for so much GPU time. */
int64_t turnstile_wall(int64_t busy, unsigned percent);
/* How much wall time a tenant without credit waits for beyond what it owes: turns cost something. */
int64_t turnstile_resume(unsigned percent);

/* --- in a seat --- */

/* paid_until as it is believed. */
int64_t turnstile_paid(const struct seat *s, int64_t now);
/* Lowers paid_until to `most`. Returns what it is then. */
int64_t turnstile_limit_debt(struct seat *s, int64_t now, int64_t most);
/* What a tenant may owe at most. */
int64_t turnstile_most_debt(struct terms terms);
/* Charges GPU time to a seat's share. */
void turnstile_spend(struct seat *s, struct terms terms, int64_t asked, int64_t now, int64_t busy);

#endif
