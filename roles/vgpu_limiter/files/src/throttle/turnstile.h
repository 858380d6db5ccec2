/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The turnstile of a GPU: a seat for each tenant, which the tenant's throttled processes write and those of all tenants on
 * the GPU read. A seat says what its tenant has used and may use, and until when one of its processes has the GPU (the lease).
 *
 * Where the agent runs (agent.h), each seat is a page of its own that only its tenant can write, and the agent says which
 * tenant has which seat, and on what terms. Otherwise all seats lie in one file. The file's locks tell who lives in either case.
 *
 * The lease. No word is shared by all tenants, so none can be taken by an atomic exchange. A process writes the lease into its
 * own seat, then looks at the others': of two that do so at once at least one sees the other, and who sees another withdraws.
 *
 * No value of another tenant is trusted: each is bounded where it is read, by what an honest process can have written at that
 * moment, and counts as absent beyond that. What a tenant's own quota says is taken from the quota. A tenant that keeps others
 * waiting for longer than its terms allow is left out of account for a while (struct doubt).
 */
#ifndef THROTTLE_TURNSTILE_H
#define THROTTLE_TURNSTILE_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/turnstile.h"

/* A process's view of another tenant that makes it wait although it has credit. */
struct doubt {
	uint64_t dead;     /* the seat's lease of a process known to be dead, 0: none */
	int64_t waited_ns; /* wait for the seat's lease since this process's last turn */
	int64_t until_ns;  /* the seat is ignored until then */
};

/* A process's view of a GPU's turnstile. */
struct turnstile {
	struct seat *seats[TURNSTILE_SEATS];  /* NULL: free. With pages, only the own seat is writable */
	const struct turnstile_terms *terms; /* NULL: use each seat's own values */
	int count;                           /* seats from here on were free at the last check (turnstile_count) */
	int holder;                          /* seat + 1 of the tenant that it last waited for, 0: none */
	int64_t waited_ns;                   /* time of that wait */
	int64_t yielded_ns;                  /* time for which it has yielded while no tenant took the GPU */
	int64_t lost_ns;                     /* last release of a lease that another tenant also had */
	struct doubt doubts[TURNSTILE_SEATS];
};

/* Another tenant's seat that is not ignored. */
static inline bool turnstile_counts(const struct turnstile *t, int seat, int own, int64_t now)
{
	return seat != own && t->seats[seat] && now >= t->doubts[seat].until_ns;
}

#endif
