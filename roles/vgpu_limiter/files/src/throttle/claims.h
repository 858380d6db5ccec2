/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Order the claims of a turnstile's seats, to decide whose turn it is.
 */
#ifndef CLAIMS_H
#define CLAIMS_H

#include "throttle/credit.h"
#include "throttle/turnstile.h"

/* The values of a seat that decide whose turn it is. */
struct claim {
	bool credit;
	int32_t priority;
	int64_t paid_until;
	uint32_t place; /* position of the tenant in this time slot */
};

/* Compare two claims. The result is above 0 if `a` comes first. Credit precedes priority, so that a borrower never
 * comes before a tenant that uses its own share. The order of equal tenants changes with each time slot, and is the
 * same on all of the host's GPUs. So a tenant's processes that wait for each other run at the same time on several
 * GPUs. */
int turnstile_order(struct claim a, struct claim b);
/* Return a tenant's position in a time slot's order. Any two tenants swap their order from slot to slot. */
uint32_t turnstile_place(const char *tenant, int64_t now);
/* Like turnstile_order, but orders equal claims by how far each tenant is behind its share. Used if the lease has no
 * owner. */
bool turnstile_before(struct claim a, struct claim b);

/* Count the seats up to the last one with a tenant. */
void turnstile_count(struct turnstile *t);
/* Return a seat's trusted terms. The agent provides them. Without the agent, the terms in the seat are used. */
struct terms turnstile_terms(const struct turnstile *t, int seat);
/* Return whether no other active tenant comes before this one in the time slot. */
bool turnstile_has_slot(const struct turnstile *t, int seat, int64_t now);
/* Return a seat's claim. A waiting borrower counts as having credit only if its credit is enough for a turn. Until
 * then, other tenants do not wait for it. */
struct claim turnstile_claim(const struct turnstile *t, int seat, struct terms terms, int64_t now, bool holds);
/* Return the first waiting seat in the order, except `seat`, and its claim. Returns -1 if no other seat waits. */
int turnstile_rival(const struct turnstile *t, int seat, int64_t now, struct claim *rival);
/* Return whether another tenant wants the GPU. */
bool turnstile_contended(const struct turnstile *t, int seat, int64_t now);
/* Return how many launches of all tenants ran concurrently with a lease holder's work. */
uint64_t turnstile_passes(const struct turnstile *t);

#endif
