/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * A lock whose holder may be killed. If a waiter finds the holder dead, the waiter takes over the lock.
 */
#include "account/region_lock.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/files.h"
#include "base/likely.h"
#include "base/shared_file.h"

#define WAITED     UINT32_C(0x80000000)
#define SLOT_BITS  11
#define LOOK_AT_HOLDER_NS (10 * 1000 * 1000)
#define BLIND_NS (INT64_C(5) * 1000 * 1000 * 1000)

static uint32_t word_of(uint32_t slot, uint32_t nonce)
{
	return (nonce & NONCE_MASK) << SLOT_BITS | (slot + 1);
}

int region_reopen(const struct tenant *tenant)
{
	char path[512];
	struct stat status;
	if (tenant->uncounted
	    || !vgpu_path(path, sizeof path, "/run/openfleet-gpu/vgpu/tenants/%s/region.%d", tenant->name, REGION_VERSION))
		return -1;
	int descriptor = vgpu_reopen(path);
	if (descriptor >= 0 && (file_status(descriptor, "", &status) != 0 || status.st_dev != tenant->device
	                        || status.st_ino != tenant->inode)) {
		vgpu_close(descriptor);
		return -1;
	}
	return descriptor;
}

bool region_slot_is_dead(const struct tenant *tenant, int descriptor, uint32_t slot)
{
	return descriptor >= 0 && slot != (uint32_t)tenant->slot && !vgpu_byte_is_taken(descriptor, LOCK_SLOTS + slot);
}

/* --- the lock: requires tenant->memory, so only one thread per process uses it --- */

/* If the lock's word has our slot, the slot's earlier owner died, because this thread does not hold the lock. */
static bool holder_is_dead(const struct tenant *tenant, uint32_t word, int64_t held_ns)
{
	uint32_t slot = (word & ((1u << SLOT_BITS) - 1)) - 1, nonce = word >> SLOT_BITS & NONCE_MASK;
	if (slot >= REGION_SLOTS || slot == (uint32_t)tenant->slot)
		return true;
	if ((atomic_load(&tenant->region->slots[slot].nonce) & NONCE_MASK) != nonce)
		return true;
	int descriptor = region_reopen(tenant);
	/* The file has no path to this process: it was removed, or the process is in a chroot. A living process never
	 * holds the lock for seconds. */
	if (descriptor < 0)
		return held_ns > BLIND_NS;
	bool dead = region_slot_is_dead(tenant, descriptor, slot);
	vgpu_close(descriptor);
	return dead;
}

static void sum_up(struct region *region)
{
	uint32_t slots = atomic_load(&region->slot_limit);
	for (int gpu = 0; gpu < REGION_GPUS; gpu++) {
		uint64_t total = 0;
		for (uint32_t i = 0; i < slots && i < REGION_SLOTS; i++)
			total += atomic_load(&region->slots[i].used[gpu]) + atomic_load(&region->slots[i].context[gpu]);
		atomic_store(&region->gpus[gpu].total, total);
	}
}

/* Use the clock to decide when to check the holder, instead of counting waits that timed out. Signals may interrupt
 * each wait, and a sandbox may forbid waiting. */
static __attribute__((noinline)) void wait_for_lock(struct tenant *tenant, uint32_t mine)
{
	_Atomic uint32_t *lock = &tenant->region->lock;
	const struct timespec patience = { .tv_nsec = LOOK_AT_HOLDER_NS };
	uint32_t waited_for = 0;	/* a lock value that has not changed since `began`, or 0 for none */
	for (int64_t began = 0, look_ns = 0;;) {
		uint32_t word = atomic_load(lock);
		/* After a wait, this thread does not know whether other threads still wait. */
		if (word == 0) {
			if (atomic_compare_exchange_strong(lock, &word, mine | WAITED))
				return;
			continue;
		}
		if (!(word & WAITED)) {
			waited_for = 0;
			if (!atomic_compare_exchange_strong(lock, &word, word | WAITED))
				continue;
			word |= WAITED;
		}
		int64_t now = kernel_ns();
		if (word != waited_for) {
			waited_for = word;
			began = now;
			look_ns = now + LOOK_AT_HOLDER_NS;
		}
		if (now < look_ns) {
			/* 0 or EAGAIN: the lock was released meanwhile, even if the same process holds it again. */
			if (syscall(SYS_futex, lock, FUTEX_WAIT, word, &patience, NULL, 0) == 0 || errno == EAGAIN)
				waited_for = 0;
			else if (errno != ETIMEDOUT && errno != EINTR)
				syscall(SYS_sched_yield);
			continue;
		}
		look_ns = now + LOOK_AT_HOLDER_NS;
		if (holder_is_dead(tenant, word, now - began) && atomic_compare_exchange_strong(lock, &word, mine | WAITED)) {
			atomic_fetch_add(&tenant->region->takeovers, 1);
			sum_up(tenant->region);
			return;
		}
	}
}

void region_lock(struct tenant *tenant)
{
	mutex_lock(&tenant->memory);
	uint32_t mine = word_of((uint32_t)tenant->slot, tenant->nonce), free = 0;
	if (UNLIKELY(!atomic_compare_exchange_strong_explicit(&tenant->region->lock, &free, mine, memory_order_acquire,
	                                                      memory_order_relaxed))) {
		int error = errno;
		wait_for_lock(tenant, mine);
		errno = error;
	}
}

void region_unlock(struct tenant *tenant)
{
	if (UNLIKELY(atomic_exchange_explicit(&tenant->region->lock, 0, memory_order_release) & WAITED)) {
		int error = errno;
		syscall(SYS_futex, &tenant->region->lock, FUTEX_WAKE, 1, NULL, NULL, 0);
		errno = error;
	}
	mutex_unlock(&tenant->memory);
}
