/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The turnstile of a GPU. Each tenant has a seat. The tenant's throttled processes write the seat, and all tenants of
 * the GPU read it. A seat contains the tenant's usage and credit, and the lease: which of its processes has the GPU,
 * and until when.
 *
 * If the agent runs (agent.h), each seat is a separate page that only its tenant can write. The agent publishes the
 * tenant and the terms of each seat. Without the agent, all seats are in one file. In both cases, locks of the file
 * show which processes are alive.
 *
 * The lease. Tenants share no writable word, so they cannot use an atomic exchange. A process writes the lease into its
 * own seat and then reads the other seats. If two processes do this at the same time, at least one of them sees the
 * other one and withdraws.
 *
 * Values of other tenants are not trusted. Each value is compared with what an honest process can have written at that
 * moment. If it is not plausible, it is ignored. A tenant's own settings come from its quota. If a tenant makes others
 * wait longer than its terms allow, it is ignored for a while (struct doubt).
 */
#ifndef THROTTLE_TURNSTILE_H
#define THROTTLE_TURNSTILE_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/turnstile.h"

/* Data about another tenant for which this process waits although its own tenant has credit. */
struct doubt {
	uint64_t dead;     /* the seat's lease if the process that holds it is known to be dead, else 0 */
	int64_t waited_ns; /* time spent waiting for the seat's lease since this process's last turn */
	int64_t until_ns;  /* the seat is ignored until this time */
};

/* A process's view of a GPU's turnstile. */
struct turnstile {
	struct seat *seats[TURNSTILE_SEATS];  /* NULL: free. With the agent's pages, only the own seat is writable */
	const struct turnstile_terms *terms; /* NULL: use the terms in each seat */
	int count;                           /* at the last check, this seat and all later ones were free (turnstile_count) */
	int holder;                          /* seat + 1 of the tenant that this process last waited for, 0: none */
	int64_t waited_ns;                   /* time of the last wait for `holder` */
	int64_t yielded_ns;                  /* time for which this process has yielded while no tenant took the GPU */
	int64_t lost_ns;                     /* last time at which this process released a lease because another tenant also had one */
	struct doubt doubts[TURNSTILE_SEATS];
	bool gives_way[TURNSTILE_SEATS];     /* an offline tenant, if this process is online (colocate.h) */
};

/* Return whether the seat belongs to another tenant for which this process waits. */
static inline bool turnstile_counts(const struct turnstile *t, int seat, int own, int64_t now)
{
	return seat != own && t->seats[seat] && !t->gives_way[seat] && now >= t->doubts[seat].until_ns;
}

#endif
