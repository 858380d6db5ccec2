/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The tenant's region: its slots and its sums. region.h says how it survives kill -9.
 */
#include "tenant.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* --- slots --- */

/* Sum and part change one after the other: who is killed between them leaves the lock held, and the
 * next holder sums up. */
static void clear_slot(struct region *region, struct slot *slot)
{
	for (int gpu = 0; gpu < REGION_GPUS; gpu++) {
		uint64_t bytes = atomic_load(&slot->used[gpu]) + atomic_load(&slot->context[gpu]);
		atomic_store(&slot->used[gpu], 0);
		atomic_store(&slot->context[gpu], 0);
		atomic_store(&region->gpus[gpu].total, atomic_load(&region->gpus[gpu].total) - bytes);
	}
	atomic_store(&slot->state, SLOT_FREE);
}

/* With or without the lock: which slots' processes are dead, of those in `among` (NULL: of all) and of those that hold
 * something on the GPU (-1: of all). Each costs a call to the kernel. */
struct slots { uint64_t bits[REGION_SLOTS / 64]; };

static bool find_dead(const struct state *state, int gpu, const struct slots *among, struct slots *dead)
{
	const struct region *region = state->region;
	uint32_t slots = atomic_load(&region->slot_limit);
	int descriptor = -2;
	bool any = false;
	*dead = (struct slots){ 0 };
	for (uint32_t i = 0; i < slots && i < REGION_SLOTS; i++) {
		if (atomic_load(&region->slots[i].state) != SLOT_USED || i == (uint32_t)state->slot
		    || (among && !(among->bits[i / 64] >> i % 64 & 1)))
			continue;
		if (gpu >= 0 && atomic_load(&region->slots[i].used[gpu]) == 0 && atomic_load(&region->slots[i].context[gpu]) == 0)
			continue;
		if (descriptor == -2)
			descriptor = region_reopen(state);
		if (region_slot_is_dead(state, descriptor, i)) {
			dead->bits[i / 64] |= UINT64_C(1) << i % 64;
			any = true;
		}
	}
	if (descriptor >= 0)
		vgpu_close(descriptor);
	return any;
}

/* Under the lock. A process that takes a slot while this goes on waits for the lock before it writes. */
static void strike_off(struct state *state, const struct slots *among)
{
	struct slots dead;
	if (find_dead(state, -1, among, &dead))
		for (uint32_t i = 0; i < REGION_SLOTS; i++)
			if (dead.bits[i / 64] >> i % 64 & 1)
				clear_slot(state->region, &state->region->slots[i]);
}

/* Without the lock: a tenant of hundreds of processes would wait for milliseconds. With it only those that were found dead
 * are looked at again, since another may have the slot by now. */
static void strike_off_the_dead(struct state *state, int gpu)
{
	struct slots dead;
	if (!find_dead(state, gpu, NULL, &dead))
		return;
	region_lock(state);
	strike_off(state, &dead);
	region_unlock(state);
}

/* The byte makes the slot ours; what the slot says is written under the lock. */
static bool take_slot(struct state *state, int descriptor)
{
	struct slot *slots = state->region->slots;
	for (int pass = 0; pass < 2; pass++) {
		for (int i = 0; i < REGION_SLOTS; i++) {
			/* Those of the dead come last: most who are marked as living are. */
			if (pass == 0 && atomic_load(&slots[i].state) == SLOT_USED)
				continue;
			if (!vgpu_take_byte(descriptor, LOCK_SLOTS + i))
				continue;
			state->slot = i;
			state->nonce = (atomic_load(&slots[i].nonce) + 1) & NONCE_MASK;
			atomic_store(&slots[i].nonce, state->nonce);
			return true;
		}
	}
	return false;
}

static void fill_slot(struct state *state)
{
	struct region *region = state->region;
	struct slot *slot = &region->slots[state->slot];
	struct timespec now;
	clock_gettime(CLOCK_BOOTTIME, &now);
	uint64_t pid_namespace = vgpu_pid_namespace();
	region_lock(state);
	clear_slot(region, slot);
	slot->pid = getpid();
	slot->pid_namespace = pid_namespace;
	slot->started_ns = now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
	memset(slot->name, 0, sizeof slot->name);
	strncpy(slot->name, program_invocation_short_name ? program_invocation_short_name : "", sizeof slot->name - 1);
	if (atomic_load(&region->slot_limit) <= (uint32_t)state->slot)
		atomic_store(&region->slot_limit, (uint32_t)state->slot + 1);
	atomic_store(&slot->state, SLOT_USED);
	region_unlock(state);
}

/* --- opening --- */

/* Where the tenant's processes cannot count together, a quota for each of them would be none for the tenant. */
#define REFUSED "this process cannot be counted, so its allocations on GPUs with a quota are refused"

/* One of those who find a new file writes its head; the others wait for that. */
static bool has_head(struct region *region, int descriptor)
{
	if (atomic_load(&region->magic) == 0 && vgpu_wait_for_byte(descriptor, LOCK_INIT)) {
		if (atomic_load(&region->magic) == 0) {
			region->version = REGION_VERSION;
			region->size = sizeof *region;
			atomic_store(&region->magic, REGION_MAGIC);
		}
		vgpu_leave_byte(descriptor, LOCK_INIT);
	}
	return atomic_load(&region->magic) == REGION_MAGIC && region->version == REGION_VERSION
	    && region->size == sizeof *region;
}

static bool open_shared_region(struct state *state, const struct quota *quota)
{
	char path[512];
	int descriptor;
	memcpy(state->region_name, quota->counted_as, sizeof state->region_name);
	if (!vgpu_path(path, sizeof path, "/run/openfleet-gpu/vgpu/tenants/%s/region.%d", state->region_name, REGION_VERSION))
		return false;
	struct region *region = vgpu_open_shared(path, sizeof *region, &descriptor);
	if (!region) {
		vgpu_log(LOG_ERR, "cannot open %s (%m): " REFUSED, path);
		return false;
	}
	const char *wrong = NULL;
	struct stat status = { 0 };
	file_status(descriptor, "", &status);
	state->region_device = status.st_dev;
	state->region_inode = status.st_ino;
	state->region = region;
	if (!has_head(region, descriptor))
		wrong = "it is no region of this version; remove it when no process of the tenant runs";
	else if (!take_slot(state, descriptor))
		wrong = "all 1024 places for processes are taken";
	vgpu_close(descriptor);
	if (!wrong)
		return true;
	vgpu_log(LOG_ERR, "%s: %s: " REFUSED, path, wrong);
	munmap(region, sizeof *region);
	state->region = NULL;
	return false;
}

static bool join(struct state *state, const struct quota *quota)
{
	if (state->region)
		return true;
	if (!open_shared_region(state, quota)) {
		void *region = mmap(NULL, sizeof(struct region), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (region == MAP_FAILED || madvise(region, sizeof(struct region), MADV_DONTFORK) != 0)
			return false;
		state->uncounted = true;
		state->slot = 0;
		state->region = region;
	}
	fill_slot(state);
	return true;
}

static int find_gpu(struct region *region, const CUuuid *uuid)
{
	int place = -1;
	for (int i = 0; i < REGION_GPUS; i++) {
		struct region_gpu *gpu = &region->gpus[i];
		if (atomic_load(&gpu->taken)) {
			if (memcmp(gpu->uuid, uuid, sizeof *uuid) == 0)
				return i;
		} else if (place < 0) {
			place = i;
		}
	}
	if (place >= 0) {
		memcpy(region->gpus[place].uuid, uuid, sizeof *uuid);
		atomic_store(&region->gpus[place].taken, 1);
	}
	return place;
}

/* Under the lock, by a process that has no quota yet and so has nothing anywhere: whether it is the only one. */
static bool is_alone(struct state *state)
{
	strike_off(state, NULL);
	for (uint32_t i = 0; i < REGION_SLOTS; i++)
		if (i != (uint32_t)state->slot && atomic_load(&state->region->slots[i].state) != SLOT_FREE)
			return false;
	return true;
}

/* A tenant may have had many GPUs by and by. Their places are free again when nobody is there who knows them. */
static void clear_gpus(struct region *region)
{
	for (int i = 0; i < REGION_GPUS; i++) {
		struct region_gpu *gpu = &region->gpus[i];
		atomic_store(&gpu->taken, 0);
		atomic_store(&gpu->total, 0);
		atomic_store(&gpu->peak, 0);
		atomic_store(&gpu->refused, 0);
		atomic_store(&gpu->context_kib, 0);
	}
}

static bool find_gpus(struct region *region, struct quota *quota)
{
	bool all = true;
	for (int i = 0; i < quota->gpu_count; i++) {
		quota->gpus[i].region = find_gpu(region, &quota->gpus[i].uuid);
		all = all && quota->gpus[i].region >= 0;
	}
	return all;
}

/* Under state->starting, so by one thread. */
void tenant_join(struct state *state, struct quota *quota)
{
	if (!join(state, quota))
		return;
	region_lock(state);
	if (!find_gpus(state->region, quota) && !vgpu_has_quota(state) && is_alone(state)) {
		clear_gpus(state->region);
		find_gpus(state->region, quota);
	}
	region_unlock(state);
	for (int i = 0; i < quota->gpu_count; i++)
		if (quota->gpus[i].region < 0)
			vgpu_log(LOG_ERR, "the region of %s has had %d other GPUs, so allocations on %s are refused; end all programs of the tenant, "
			         "and the next one has room for it", quota->tenant, REGION_GPUS, quota->gpus[i].name);
}

/* --- sums --- */

static void add(struct state *state, int gpu, uint64_t bytes)
{
	struct region_gpu *sums = &state->region->gpus[gpu];
	_Atomic uint64_t *used = &state->region->slots[state->slot].used[gpu];
	uint64_t total = atomic_load_explicit(&sums->total, memory_order_relaxed) + bytes;
	atomic_store_explicit(used, atomic_load_explicit(used, memory_order_relaxed) + bytes, memory_order_relaxed);
	atomic_store_explicit(&sums->total, total, memory_order_relaxed);
}

void tenant_note_peak(struct state *state, int gpu)
{
	struct region_gpu *sums = &state->region->gpus[gpu];
	uint64_t total = atomic_load_explicit(&sums->total, memory_order_relaxed);
	uint64_t peak = atomic_load_explicit(&sums->peak, memory_order_relaxed);
	while (total > peak && !atomic_compare_exchange_weak(&sums->peak, &peak, total))
		;
}

static bool has_room(struct state *state, int gpu, uint64_t bytes, uint64_t limit)
{
	uint64_t total = atomic_load_explicit(&state->region->gpus[gpu].total, memory_order_relaxed);
	return total <= limit && bytes <= limit - total;
}

static inline bool reserve_if(struct state *state, int gpu, uint64_t bytes, uint64_t limit, bool reserves)
{
	region_lock(state);
	bool room = has_room(state, gpu, bytes, limit);
	if (LIKELY(room && reserves))
		add(state, gpu, bytes);
	region_unlock(state);
	return room;
}

bool tenant_has_room(struct state *state, int gpu, uint64_t bytes, uint64_t limit)
{
	if (reserve_if(state, gpu, bytes, limit, false))
		return true;
	strike_off_the_dead(state, gpu);
	return reserve_if(state, gpu, bytes, limit, false);
}

bool tenant_reserve(struct state *state, int gpu, uint64_t bytes, uint64_t limit)
{
	if (LIKELY(reserve_if(state, gpu, bytes, limit, true)))
		return true;
	strike_off_the_dead(state, gpu);
	return reserve_if(state, gpu, bytes, limit, true);
}

void tenant_refused(struct state *state, int gpu)
{
	atomic_fetch_add(&state->region->gpus[gpu].refused, 1);
}

void tenant_add(struct state *state, int gpu, uint64_t bytes)
{
	region_lock(state);
	add(state, gpu, bytes);
	region_unlock(state);
	tenant_note_peak(state, gpu);
}

void tenant_give_back(struct state *state, int gpu, uint64_t bytes)
{
	region_lock(state);
	_Atomic uint64_t *used = &state->region->slots[state->slot].used[gpu], *total = &state->region->gpus[gpu].total;
	uint64_t held = atomic_load_explicit(used, memory_order_relaxed);
	if (bytes > held)
		bytes = held;
	atomic_store_explicit(used, held - bytes, memory_order_relaxed);
	atomic_store_explicit(total, atomic_load_explicit(total, memory_order_relaxed) - bytes, memory_order_relaxed);
	region_unlock(state);
}

/* --- contexts --- */

static bool reserve_context_if_room(struct state *state, int gpu, uint64_t bytes, uint64_t limit)
{
	_Atomic uint64_t *context = &state->region->slots[state->slot].context[gpu];
	region_lock(state);
	bool room = has_room(state, gpu, bytes, limit);
	if (room) {
		uint64_t total = atomic_load(&state->region->gpus[gpu].total) + bytes;
		atomic_store(context, atomic_load(context) + bytes);
		atomic_store(&state->region->gpus[gpu].total, total);
	}
	region_unlock(state);
	return room;
}

bool tenant_reserve_context(struct state *state, int gpu, uint64_t bytes, uint64_t limit)
{
	if (reserve_context_if_room(state, gpu, bytes, limit))
		return true;
	strike_off_the_dead(state, gpu);
	return reserve_context_if_room(state, gpu, bytes, limit);
}

void tenant_give_back_context(struct state *state, int gpu, uint64_t bytes)
{
	_Atomic uint64_t *context = &state->region->slots[state->slot].context[gpu], *total = &state->region->gpus[gpu].total;
	region_lock(state);
	uint64_t held = atomic_load(context);
	if (bytes > held)
		bytes = held;
	atomic_store(context, held - bytes);
	atomic_store(total, atomic_load(total) - bytes);
	region_unlock(state);
}

uint64_t tenant_context_cost(struct state *state, int gpu)
{
	return (uint64_t)atomic_load(&state->region->gpus[gpu].context_kib) * 1024;
}

void tenant_learn_context(struct state *state, int gpu, uint64_t bytes)
{
	_Atomic uint32_t *cost = &state->region->gpus[gpu].context_kib;
	uint32_t known = atomic_load(cost), kib = bytes / 1024 > UINT32_MAX ? UINT32_MAX : (uint32_t)(bytes / 1024);
	while (kib && (known == 0 || kib < known) && !atomic_compare_exchange_weak(cost, &known, kib))
		;
}

uint64_t tenant_used(struct state *state, int gpu)
{
	strike_off_the_dead(state, gpu);
	region_lock(state);
	uint64_t total = atomic_load(&state->region->gpus[gpu].total);
	region_unlock(state);
	return total;
}

uint64_t tenant_own_used(struct state *state, int gpu)
{
	return atomic_load(&state->region->slots[state->slot].used[gpu]);
}

void tenant_set_context(struct state *state, int gpu, uint64_t bytes)
{
	region_lock(state);
	_Atomic uint64_t *context = &state->region->slots[state->slot].context[gpu];
	_Atomic uint64_t *total = &state->region->gpus[gpu].total;
	uint64_t sum = atomic_load(total) - atomic_load(context) + bytes;
	atomic_store(context, bytes);
	atomic_store(total, sum);
	region_unlock(state);
	tenant_note_peak(state, gpu);
}

int tenant_pids(struct state *state, unsigned pids[REGION_SLOTS])
{
	int count = 0;
	if (vgpu_pid_namespace() != INITIAL_PID_NAMESPACE)
		return 0;
	strike_off_the_dead(state, -1);
	region_lock(state);
	uint32_t slots = atomic_load(&state->region->slot_limit);
	for (uint32_t i = 0; i < slots && i < REGION_SLOTS; i++)
		if (atomic_load(&state->region->slots[i].state) == SLOT_USED
		    && state->region->slots[i].pid_namespace == INITIAL_PID_NAMESPACE)
			pids[count++] = (unsigned)state->region->slots[i].pid;
	region_unlock(state);
	return count;
}
