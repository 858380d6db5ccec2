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

/* Reserve memory. The result is exact, because dead processes are removed before memory is refused or reported. */
bool tenant_reserve(struct tenant *, int gpu, uint64_t bytes, uint64_t limit);
bool tenant_has_room(struct tenant *, int gpu, uint64_t bytes, uint64_t limit);	/* checks without reserving */
uint64_t tenant_used(struct tenant *, int gpu);
void tenant_give_back(struct tenant *, int gpu, uint64_t bytes);
/* Raise the peak to the current sum after reserved memory became an allocation. The sum includes other processes'
 * concurrent reservations. */
void tenant_note_peak(struct tenant *, int gpu);
/* Count an allocation that was refused after all attempts. */
void tenant_refused(struct tenant *, int gpu);

uint64_t tenant_own_used(struct tenant *, int gpu);		/* memory of this process without its contexts */
/* Return the number of the tenant's living processes, and store their host PIDs, without processes in other PID
 * namespaces. If this process is not in the host's PID namespace, no PIDs are stored. */
int tenant_pids(struct tenant *, unsigned pids[REGION_SLOTS]);


/* Requires the region's lock. Return whether `bytes` fits in addition to the current sum. */
bool tenant_fits(const struct tenant *, int gpu, uint64_t bytes, uint64_t limit);

#endif
