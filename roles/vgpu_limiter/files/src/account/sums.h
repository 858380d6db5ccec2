/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Sums of the tenant's region: memory of living processes. Functions take the region's lock and call no driver
 * function.
 */
#ifndef SUMS_H
#define SUMS_H

#include "account/tenant.h"

/* Exact: dead processes are removed before a refusal or a report. */
bool tenant_reserve(struct tenant *, int gpu, uint64_t bytes, uint64_t limit);
bool tenant_has_room(struct tenant *, int gpu, uint64_t bytes, uint64_t limit);	/* check only, without reserving */
uint64_t tenant_used(struct tenant *, int gpu);
void tenant_give_back(struct tenant *, int gpu, uint64_t bytes);
/* Reserved memory exists now and counts for the peak, as do concurrent requests of other processes. */
void tenant_note_peak(struct tenant *, int gpu);
/* Count an allocation that finally failed. */
void tenant_refused(struct tenant *, int gpu);

uint64_t tenant_own_used(struct tenant *, int gpu);		/* this process, without its contexts */
/* Return the number of the tenant's living processes, with their host PIDs. Omits processes in other PID namespaces,
 * and all if this process is in one. */
int tenant_pids(struct tenant *, unsigned pids[REGION_SLOTS]);


/* Requires the region's lock. Return whether the sum leaves room. */
bool tenant_fits(const struct tenant *, int gpu, uint64_t bytes, uint64_t limit);

#endif
