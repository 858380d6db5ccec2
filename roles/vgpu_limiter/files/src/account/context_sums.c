/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Reserve memory for contexts, and record the cost of one context.
 */
#include "account/context_sums.h"

#include <string.h>

#include "account/dead.h"
#include "account/region_lock.h"
#include "account/sums.h"

static bool reserve_context_if_room(struct tenant *tenant, int gpu, uint64_t bytes, uint64_t limit)
{
	_Atomic uint64_t *context = &tenant->region->slots[tenant->slot].context[gpu];
	region_lock(tenant);
	bool room = tenant_fits(tenant, gpu, bytes, limit);
	if (room) {
		uint64_t total = atomic_load(&tenant->region->gpus[gpu].total) + bytes;
		atomic_store(context, atomic_load(context) + bytes);
		atomic_store(&tenant->region->gpus[gpu].total, total);
	}
	region_unlock(tenant);
	return room;
}

bool tenant_reserve_context(struct tenant *tenant, int gpu, uint64_t bytes, uint64_t limit)
{
	if (reserve_context_if_room(tenant, gpu, bytes, limit))
		return true;
	tenant_strike_off(tenant, gpu);
	return reserve_context_if_room(tenant, gpu, bytes, limit);
}

void tenant_give_back_context(struct tenant *tenant, int gpu, uint64_t bytes)
{
	_Atomic uint64_t *context = &tenant->region->slots[tenant->slot].context[gpu], *total = &tenant->region->gpus[gpu].total;
	region_lock(tenant);
	uint64_t held = atomic_load(context);
	if (bytes > held)
		bytes = held;
	atomic_store(context, held - bytes);
	atomic_store(total, atomic_load(total) - bytes);
	region_unlock(tenant);
}

uint64_t tenant_context_cost(struct tenant *tenant, int gpu)
{
	return (uint64_t)atomic_load(&tenant->region->gpus[gpu].context_kib) * 1024;
}

void tenant_learn_context(struct tenant *tenant, int gpu, uint64_t bytes)
{
	_Atomic uint32_t *cost = &tenant->region->gpus[gpu].context_kib;
	uint32_t known = atomic_load(cost), kib = bytes / 1024 > UINT32_MAX ? UINT32_MAX : (uint32_t)(bytes / 1024);
	while (kib && (known == 0 || kib < known) && !atomic_compare_exchange_weak(cost, &known, kib))
		;
}

/* Requires the region's lock. */
static void set_context(struct tenant *tenant, uint32_t slot, int gpu, uint64_t bytes)
{
	_Atomic uint64_t *context = &tenant->region->slots[slot].context[gpu];
	_Atomic uint64_t *total = &tenant->region->gpus[gpu].total;
	uint64_t sum = atomic_load(total) - atomic_load(context) + bytes;
	atomic_store(context, bytes);
	atomic_store(total, sum);
}

void tenant_set_context(struct tenant *tenant, int gpu, uint64_t bytes)
{
	region_lock(tenant);
	set_context(tenant, (uint32_t)tenant->slot, gpu, bytes);
	region_unlock(tenant);
	tenant_note_peak(tenant, gpu);
}

static bool is_process(const struct tenant *tenant, uint32_t slot, uint32_t nonce)
{
	return slot < REGION_SLOTS && atomic_load(&tenant->region->slots[slot].nonce) == nonce;
}

void tenant_raise_context(struct tenant *tenant, uint32_t slot, uint32_t nonce, int gpu, uint64_t bytes)
{
	/* Check without the lock first, because the value rarely has to be raised. */
	if (!is_process(tenant, slot, nonce) || atomic_load(&tenant->region->slots[slot].context[gpu]) >= bytes)
		return;
	region_lock(tenant);
	const struct slot *other = &tenant->region->slots[slot];
	if (is_process(tenant, slot, nonce) && atomic_load(&other->state) == SLOT_USED && atomic_load(&other->context[gpu]) < bytes)
		set_context(tenant, slot, gpu, bytes);
	region_unlock(tenant);
	tenant_note_peak(tenant, gpu);
}

/* Requires the region's lock. Any content of the slot is from a dead process. */
static void open_slot(struct region *region, uint32_t slot)
{
	struct slot *opened = &region->slots[slot];
	tenant_clear_slot(region, opened);
	opened->pid = 0;
	opened->pid_namespace = 0;
	opened->started_ns = 0;
	memset(opened->name, 0, sizeof opened->name);
	strcpy(opened->name, "(without the limiter)");
	if (atomic_load(&region->slot_limit) <= slot)
		atomic_store(&region->slot_limit, slot + 1);
	atomic_store(&opened->state, SLOT_USED);
}

void tenant_set_others(struct tenant *tenant, uint32_t slot, uint32_t nonce, int gpu, uint64_t bytes)
{
	if (!is_process(tenant, slot, nonce) || slot == (uint32_t)tenant->slot
	    || (atomic_load(&tenant->region->slots[slot].state) == SLOT_USED
	        && atomic_load(&tenant->region->slots[slot].context[gpu]) == bytes))
		return;
	region_lock(tenant);
	if (is_process(tenant, slot, nonce)) {
		if (atomic_load(&tenant->region->slots[slot].state) != SLOT_USED)
			open_slot(tenant->region, slot);
		set_context(tenant, slot, gpu, bytes);
	}
	region_unlock(tenant);
	tenant_note_peak(tenant, gpu);
}
