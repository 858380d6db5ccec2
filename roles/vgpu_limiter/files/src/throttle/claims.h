/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Whose turn it is: the claims of the seats of a turnstile, in an order.
 */
#ifndef CLAIMS_H
#define CLAIMS_H

#include "throttle/credit.h"
#include "throttle/turnstile.h"

/* What of a seat decides whose turn it is. */
struct claim {
	bool credit;
	int32_t priority;
	int64_t paid_until;
	uint32_t place; /* in the order of tenants for this slot of the clock */
};

/* Above 0: a's right comes first. Credit comes before priority, so that a borrower never stands before a tenant that uses
 * its own share. Tenants of equal rights have each slot of the clock in another order, which is the same on all GPUs of
 * the host: so the processes of a tenant that wait for each other on several GPUs run there at the same time. */
int turnstile_order(struct claim a, struct claim b);
/* A tenant's place in a slot's order. Any two tenants change places from each slot to the next, in pairs. */
uint32_t turnstile_place(const char *tenant, int64_t now);
/* As turnstile_order, then who is further behind its share: for a lease that nobody has. */
bool turnstile_before(struct claim a, struct claim b);

/* Looks which seats have a tenant. */
void turnstile_count(struct turnstile *t);
/* A seat's terms as others believe them: the agent's, or else those in the seat. */
struct terms turnstile_terms(const struct turnstile *t, int seat);
/* Whether no other active tenant comes before this one in the slot's order. */
bool turnstile_has_slot(const struct turnstile *t, int seat, int64_t now);
/* A borrower that waits counts as having credit only with enough of it for a turn; the others do not wait before. */
struct claim turnstile_claim(const struct turnstile *t, int seat, struct terms terms, int64_t now, bool holds);
/* The first of the other seats that wait, and its claim; -1 if none does. */
int turnstile_rival(const struct turnstile *t, int seat, int64_t now, struct claim *rival);
/* Whether any other tenant wants the GPU. */
bool turnstile_contended(const struct turnstile *t, int seat, int64_t now);
/* How many launches of any tenant went beside the work of a lease's holder. */
uint64_t turnstile_passes(const struct turnstile *t);

#endif
