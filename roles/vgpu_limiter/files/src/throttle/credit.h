/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * A tenant's credit, stored as one number in its seat (paid_until).
 */
#ifndef CREDIT_H
#define CREDIT_H

#include <stdbool.h>

#include "formats/turnstile.h"

/* The quota's settings for a tenant's share of a GPU. */
struct terms {
	uint32_t percent;
	uint32_t policy;
	int32_t priority;
};

/* Return whether a tenant without credit may run while no tenant with credit wants the GPU. */
static inline bool terms_may_borrow_freely(struct terms terms)
{
	return terms.policy == POLICY_BURST || terms.policy == POLICY_COLOCATE;
}

/* --- arithmetic without a clock --- */

/* Return the new paid_until after `busy` ns of GPU time that was requested at `asked`. It is at most `most` after now.
 * A negative `busy` corrects an earlier charge that was too high. */
int64_t turnstile_charge(int64_t paid_until, int64_t asked, int64_t now, int64_t busy, unsigned percent, int64_t most);
/* Return the elapsed time in which a share earns this GPU time. */
int64_t turnstile_wall(int64_t busy, unsigned percent);
/* Return how long a tenant without credit waits after its debt is paid. The wait avoids short turns, because each turn
 * has a cost. */
int64_t turnstile_resume(unsigned percent);

/* --- in a seat --- */

/* Return the seat's paid_until, limited to plausible values. */
int64_t turnstile_paid(const struct seat *s, int64_t now);
/* Lower paid_until to `most` if it is higher. Return the result. */
int64_t turnstile_limit_debt(struct seat *s, int64_t now, int64_t most);
/* Return a tenant's maximum debt. */
int64_t turnstile_most_debt(struct terms terms);
/* Charge GPU time to a seat's share. */
void turnstile_spend(struct seat *s, struct terms terms, int64_t asked, int64_t now, int64_t busy);

#endif
