/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Claims of a turnstile's seats in order: whose turn it is.
 */
#ifndef CLAIMS_H
#define CLAIMS_H

#include "throttle/credit.h"
#include "throttle/turnstile.h"

/* Fields of a seat that decide whose turn it is. */
struct claim {
	bool credit;
	int32_t priority;
	int64_t paid_until;
	uint32_t place; /* order of tenants in this time slot */
};

/* Above 0 if a comes first. Credit precedes priority, so that a borrower never precedes a tenant that uses its own
 * share. The order of equal tenants changes with each time slot and is the same on all GPUs of the host, so that
 * interdependent processes of a tenant run at the same time on several GPUs. */
int turnstile_order(struct claim a, struct claim b);
/* A tenant's position in a slot's order. Any two tenants swap positions from each slot to the next. */
uint32_t turnstile_place(const char *tenant, int64_t now);
/* Like turnstile_order, then by lag behind the share, for a lease without an owner. */
bool turnstile_before(struct claim a, struct claim b);

/* Find the seats with a tenant. */
void turnstile_count(struct turnstile *t);
/* A seat's trusted terms: the agent's, or without an agent those in the seat. */
struct terms turnstile_terms(const struct turnstile *t, int seat);
/* Return whether no other active tenant precedes this one in the slot's order. */
bool turnstile_has_slot(const struct turnstile *t, int seat, int64_t now);
/* A waiting borrower counts as having credit only if it suffices for a turn. Other tenants do not wait before. */
struct claim turnstile_claim(const struct turnstile *t, int seat, struct terms terms, int64_t now, bool holds);
/* Return the first other waiting seat with its claim, -1 without one. */
int turnstile_rival(const struct turnstile *t, int seat, int64_t now, struct claim *rival);
/* Return whether another tenant wants the GPU. */
bool turnstile_contended(const struct turnstile *t, int seat, int64_t now);
/* Return the number of launches of all tenants that ran concurrently with a lease holder's work. */
uint64_t turnstile_passes(const struct turnstile *t);

#endif
