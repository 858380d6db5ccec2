/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * What a process keeps lies in memory that the kernel empties in a child of fork (MADV_WIPEONFORK,
 * Linux 4.14): the child has no slot, no allocations and no held lock, and begins anew when it first
 * calls a hook. So no handler of fork is needed, and none runs in a program that forks.
 */
#include "internal.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "quota.h"

_Atomic(struct state *) vgpu_state_page;

int64_t vgpu_coarse_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* 0: free, 1: held, 2: held and somebody may be waiting. */
void mutex_lock(struct mutex *mutex)
{
	uint32_t free = 0;
	if (LIKELY(atomic_compare_exchange_strong_explicit(&mutex->word, &free, 1, memory_order_acquire, memory_order_relaxed)))
		return;
	while (atomic_exchange_explicit(&mutex->word, 2, memory_order_acquire) != 0)
		syscall(SYS_futex, &mutex->word, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
}

void mutex_unlock(struct mutex *mutex)
{
	if (UNLIKELY(atomic_exchange_explicit(&mutex->word, 0, memory_order_release) == 2))
		syscall(SYS_futex, &mutex->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static __thread char this_thread __attribute__((tls_model("initial-exec")));

void pools_lock(struct state *state)
{
	struct pools_lock *lock = &state->pools;
	if (atomic_load_explicit(&lock->owner, memory_order_relaxed) != &this_thread) {
		mutex_lock(&lock->mutex);
		atomic_store_explicit(&lock->owner, &this_thread, memory_order_relaxed);
	}
	lock->depth++;
}

void pools_unlock(struct state *state)
{
	struct pools_lock *lock = &state->pools;
	if (--lock->depth > 0)
		return;
	atomic_store_explicit(&lock->owner, NULL, memory_order_relaxed);
	mutex_unlock(&lock->mutex);
}

static struct state *make_page(void)
{
	struct state *page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (page == MAP_FAILED)
		return NULL;
	struct state *other = NULL;
	if (madvise(page, sizeof *page, MADV_WIPEONFORK) != 0) {
		vgpu_log(LOG_ERR, "this kernel has no MADV_WIPEONFORK (Linux 4.14): no limit in this process");
		munmap(page, sizeof *page);
		return NULL;
	}
	if (atomic_compare_exchange_strong(&vgpu_state_page, &other, page))
		return page;
	munmap(page, sizeof *page);
	return other;
}

struct state *vgpu_state_start(void)
{
	/* Most processes that load the library are of no tenant's, and then it costs them one look. */
	static _Atomic bool hopeless;
	if (atomic_load_explicit(&hopeless, memory_order_relaxed))
		return NULL;
	int error = errno;
	struct state *state = atomic_load_explicit(&vgpu_state_page, memory_order_acquire);
	if (!state && !(state = make_page())) {
		atomic_store_explicit(&hopeless, true, memory_order_relaxed);
		errno = error;
		return NULL;
	}
	mutex_lock(&state->starting);
	if (atomic_load_explicit(&state->phase, memory_order_relaxed) == PHASE_NEW) {
		enum identity identity = vgpu_identify(state);
		bool on = identity != IDENTITY_NONE;
		state->mounted = identity == IDENTITY_MOUNTED;
		if (identity == IDENTITY_UNCLEAR)
			quota_refuse_all(state);
		else if (on)
			quota_read(state);
		/* The first call of a process does no more than it must: NVML's turn comes a second later. */
		atomic_store(&state->look_again_ns, vgpu_coarse_ns() + LOOK_EVERY_NS);
		atomic_store_explicit(&state->phase, on ? PHASE_ON : PHASE_OFF, memory_order_release);
	}
	mutex_unlock(&state->starting);
	errno = error;
	return atomic_load_explicit(&state->phase, memory_order_acquire) == PHASE_ON ? state : NULL;
}
