/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * What this process does in its tenant's region (layout: region.h). GPUs are named by their place in
 * the region. Every function takes state->memory itself and no driver function is called in it, but
 * for those at the end.
 */
#ifndef TENANT_H
#define TENANT_H

#include "internal.h"
#include "region.h"

/* Takes a slot in the region, where this process has none yet, and finds each GPU's place in it. */
void tenant_join(struct state *, struct quota *);

/* Exact, by the living alone: the dead are struck off before it is false, or shown. */
bool tenant_reserve(struct state *, int gpu, uint64_t bytes, uint64_t limit);
bool tenant_has_room(struct state *, int gpu, uint64_t bytes, uint64_t limit);	/* as it would answer; reserves nothing */
uint64_t tenant_used(struct state *, int gpu);

void tenant_add(struct state *, int gpu, uint64_t bytes);	/* without a limit */
void tenant_give_back(struct state *, int gpu, uint64_t bytes);
/* What was reserved has become memory: now it counts for the peak (as does what others ask for at this moment). */
void tenant_note_peak(struct state *, int gpu);
/* An allocation found no room in the end. */
void tenant_refused(struct state *, int gpu);

/* Of contexts (contexts.c). What one costs on the GPU, 0: not known yet. */
bool tenant_reserve_context(struct state *, int gpu, uint64_t bytes, uint64_t limit);
void tenant_give_back_context(struct state *, int gpu, uint64_t bytes);
uint64_t tenant_context_cost(struct state *, int gpu);
void tenant_learn_context(struct state *, int gpu, uint64_t bytes);	/* the least that was ever seen is kept */
/* Asks NVML at once, where it was not asked for the GPUs of this process's contexts yet. */
void tenant_learn_now(struct state *, const struct quota *);

uint64_t tenant_own_used(struct state *, int gpu);		/* this process's, without its context */
void tenant_set_context(struct state *, int gpu, uint64_t bytes);
/* The tenant's living processes by the host's numbers. Returns how many: those that see themselves by these, and
 * none where this process does not. */
int tenant_pids(struct state *, unsigned pids[REGION_SLOTS]);

/* Once a second: what the pools and graphs hold, and what NVML says of this process. */
void tenant_settle(struct state *, const struct quota *);
void settle_pools(struct state *, int gpu, bool trim);		/* pools.c; gpu -1: all */
void settle_pools_held(struct state *, int gpu, bool trim);	/* the same, state->pools being held */
void settle_graphs(struct state *, const struct quota *);	/* graphs.c */
void settle_nvml(struct state *, const struct quota *);		/* nvml.c */

/* --- region_lock.c, for region.c --- */

#define NONCE_MASK UINT32_C(0xfffff)
/* Held with state->memory, so by one thread of a process. */
void region_lock(struct state *);
void region_unlock(struct state *);
/* The file that is mapped, or -1: it is gone, or another has its name (the tenant was removed and made
 * anew while this process ran). Locks in that one say nothing of the slots here. */
int region_reopen(const struct state *);
bool region_slot_is_dead(const struct state *, int descriptor, uint32_t slot);

#endif
