/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Find dead processes of the tenant.
 */
#include "account/dead.h"

#include "account/region_lock.h"
#include "base/files.h"

/* The sum and the slot change one after the other. A process that is killed in between leaves the lock held, and the
 * next holder recomputes the sum. */
void tenant_clear_slot(struct region *region, struct slot *slot)
{
	for (int gpu = 0; gpu < REGION_GPUS; gpu++) {
		uint64_t bytes = atomic_load(&slot->used[gpu]) + atomic_load(&slot->context[gpu]);
		atomic_store(&slot->used[gpu], 0);
		atomic_store(&slot->context[gpu], 0);
		atomic_store(&region->gpus[gpu].total, atomic_load(&region->gpus[gpu].total) - bytes);
	}
	atomic_store(&slot->state, SLOT_FREE);
}

/* Return the slots of dead processes with memory on the GPU (-1 for any GPU). Only the slots in `among` are searched
 * (NULL for all). The region's lock is optional. Each check is a system call. */
struct slots { uint64_t bits[REGION_SLOTS / 64]; };

static bool find_dead(const struct tenant *tenant, int gpu, const struct slots *among, struct slots *dead)
{
	const struct region *region = tenant->region;
	uint32_t slots = atomic_load(&region->slot_limit);
	int descriptor = -2;
	bool any = false;
	*dead = (struct slots){ 0 };
	for (uint32_t i = 0; i < slots && i < REGION_SLOTS; i++) {
		if (atomic_load(&region->slots[i].state) != SLOT_USED || i == (uint32_t)tenant->slot
		    || (among && !(among->bits[i / 64] >> i % 64 & 1)))
			continue;
		if (gpu >= 0 && atomic_load(&region->slots[i].used[gpu]) == 0 && atomic_load(&region->slots[i].context[gpu]) == 0)
			continue;
		if (descriptor == -2)
			descriptor = region_reopen(tenant);
		if (region_slot_is_dead(tenant, descriptor, i)) {
			dead->bits[i / 64] |= UINT64_C(1) << i % 64;
			any = true;
		}
	}
	if (descriptor >= 0)
		vgpu_close(descriptor);
	return any;
}

/* Requires the lock. Another process may take a slot at the same time, but waits for the lock before it writes. */
static void strike_off(struct tenant *tenant, const struct slots *among)
{
	struct slots dead;
	if (find_dead(tenant, -1, among, &dead))
		for (uint32_t i = 0; i < REGION_SLOTS; i++)
			if (dead.bits[i / 64] >> i % 64 & 1)
				tenant_clear_slot(tenant->region, &tenant->region->slots[i]);
}

/* Search without the lock first, because the search may take milliseconds in a tenant with hundreds of processes. Then
 * check only the dead processes again with the lock held, because another process may own the slot by then. */
void tenant_strike_off(struct tenant *tenant, int gpu)
{
	struct slots dead;
	if (!find_dead(tenant, gpu, NULL, &dead))
		return;
	region_lock(tenant);
	strike_off(tenant, &dead);
	region_unlock(tenant);
}

void tenant_strike_off_all(struct tenant *tenant)
{
	strike_off(tenant, NULL);
}
