/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Add a process's memory to the region, and subtract it.
 */
#include "account/sums.h"

#include "account/dead.h"
#include "account/region_lock.h"
#include "base/files.h"
#include "base/likely.h"

/* Requires the region's lock, so only one thread writes the counter. */
static inline void moved(struct tenant *tenant)
{
	uint32_t moves = atomic_load_explicit(&tenant->moves, memory_order_relaxed);
	atomic_store_explicit(&tenant->moves, moves + 1, memory_order_release);
}

static void add(struct tenant *tenant, int gpu, uint64_t bytes)
{
	struct region_gpu *sums = &tenant->region->gpus[gpu];
	_Atomic uint64_t *used = &tenant->region->slots[tenant->slot].used[gpu];
	uint64_t total = atomic_load_explicit(&sums->total, memory_order_relaxed) + bytes;
	atomic_store_explicit(used, atomic_load_explicit(used, memory_order_relaxed) + bytes, memory_order_relaxed);
	atomic_store_explicit(&sums->total, total, memory_order_relaxed);
	moved(tenant);
}

void tenant_note_peak(struct tenant *tenant, int gpu)
{
	struct region_gpu *sums = &tenant->region->gpus[gpu];
	uint64_t total = atomic_load_explicit(&sums->total, memory_order_relaxed);
	uint64_t peak = atomic_load_explicit(&sums->peak, memory_order_relaxed);
	while (total > peak && !atomic_compare_exchange_weak(&sums->peak, &peak, total))
		;
}

bool tenant_fits(const struct tenant *tenant, int gpu, uint64_t bytes, uint64_t limit)
{
	uint64_t total = atomic_load_explicit(&tenant->region->gpus[gpu].total, memory_order_relaxed);
	return total <= limit && bytes <= limit - total;
}

static inline bool reserve_if(struct tenant *tenant, int gpu, uint64_t bytes, uint64_t limit, bool reserves)
{
	region_lock(tenant);
	bool room = tenant_fits(tenant, gpu, bytes, limit);
	if (LIKELY(room && reserves))
		add(tenant, gpu, bytes);
	region_unlock(tenant);
	return room;
}

bool tenant_has_room(struct tenant *tenant, int gpu, uint64_t bytes, uint64_t limit)
{
	if (reserve_if(tenant, gpu, bytes, limit, false))
		return true;
	tenant_strike_off(tenant, gpu);
	return reserve_if(tenant, gpu, bytes, limit, false);
}

bool tenant_reserve(struct tenant *tenant, int gpu, uint64_t bytes, uint64_t limit)
{
	if (LIKELY(reserve_if(tenant, gpu, bytes, limit, true)))
		return true;
	tenant_strike_off(tenant, gpu);
	return reserve_if(tenant, gpu, bytes, limit, true);
}

void tenant_refused(struct tenant *tenant, int gpu)
{
	atomic_fetch_add(&tenant->region->gpus[gpu].refused, 1);
}

void tenant_give_back(struct tenant *tenant, int gpu, uint64_t bytes)
{
	region_lock(tenant);
	_Atomic uint64_t *used = &tenant->region->slots[tenant->slot].used[gpu], *total = &tenant->region->gpus[gpu].total;
	uint64_t held = atomic_load_explicit(used, memory_order_relaxed);
	if (bytes > held)
		bytes = held;
	atomic_store_explicit(used, held - bytes, memory_order_relaxed);
	atomic_store_explicit(total, atomic_load_explicit(total, memory_order_relaxed) - bytes, memory_order_relaxed);
	moved(tenant);
	region_unlock(tenant);
}

uint64_t tenant_used(struct tenant *tenant, int gpu)
{
	tenant_strike_off(tenant, gpu);
	region_lock(tenant);
	uint64_t total = atomic_load(&tenant->region->gpus[gpu].total);
	region_unlock(tenant);
	return total;
}

uint64_t tenant_own_used(struct tenant *tenant, int gpu)
{
	return atomic_load(&tenant->region->slots[tenant->slot].used[gpu]);
}

int tenant_pids(struct tenant *tenant, unsigned pids[REGION_SLOTS])
{
	int count = 0;
	if (vgpu_pid_namespace() != INITIAL_PID_NAMESPACE)
		return 0;
	tenant_strike_off(tenant, -1);
	region_lock(tenant);
	uint32_t slots = atomic_load(&tenant->region->slot_limit);
	for (uint32_t i = 0; i < slots && i < REGION_SLOTS; i++)
		if (atomic_load(&tenant->region->slots[i].state) == SLOT_USED
		    && tenant->region->slots[i].pid_namespace == INITIAL_PID_NAMESPACE)
			pids[count++] = (unsigned)tenant->region->slots[i].pid;
	region_unlock(tenant);
	return count;
}
