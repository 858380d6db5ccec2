/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The turnstile of a GPU: a seat for each tenant, written by its throttled processes and read by all tenants of the
 * GPU. A seat contains the tenant's usage and credit, and until when one of its processes has the GPU (the lease).
 *
 * With the agent (agent.h), each seat is a separate page that only its tenant can write, and the agent publishes the
 * tenant and terms of each seat. Otherwise all seats are in one file. In both cases the file's locks show which
 * processes are alive.
 *
 * The lease. Tenants share no word, so no atomic exchange is possible. A process writes the lease into its own seat and
 * then reads the other seats. At least one of two concurrent processes sees the other and withdraws.
 *
 * No value of another tenant is trusted. Each is checked against what an honest process can have written at that
 * moment, and ignored otherwise. A tenant's own settings come from its quota. A tenant that makes others wait longer
 * than its terms allow is ignored for a while (struct doubt).
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
