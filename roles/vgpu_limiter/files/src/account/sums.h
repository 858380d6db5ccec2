/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Sums of the tenant's region: what is used, by the living alone. Each function takes the region's lock itself, and calls no
 * function of the driver.
 */
#ifndef SUMS_H
#define SUMS_H

#include "account/tenant.h"

/* Exact, by the living alone: the dead are struck off before it is false, or shown. */
bool tenant_reserve(struct tenant *, int gpu, uint64_t bytes, uint64_t limit);
bool tenant_has_room(struct tenant *, int gpu, uint64_t bytes, uint64_t limit);	/* as it would answer; reserves nothing */
uint64_t tenant_used(struct tenant *, int gpu);
void tenant_give_back(struct tenant *, int gpu, uint64_t bytes);
/* What was reserved has become memory: now it counts for the peak (as does what others ask for at this moment). */
void tenant_note_peak(struct tenant *, int gpu);
/* An allocation found no room in the end. */
void tenant_refused(struct tenant *, int gpu);

uint64_t tenant_own_used(struct tenant *, int gpu);		/* this process's, without its context */
/* The tenant's living processes by the host's numbers. Returns how many: those that see themselves by these, and
 * none where this process does not. */
int tenant_pids(struct tenant *, unsigned pids[REGION_SLOTS]);


/* With the region's lock held: whether the sum leaves room for that. */
bool tenant_fits(const struct tenant *, int gpu, uint64_t bytes, uint64_t limit);

#endif
