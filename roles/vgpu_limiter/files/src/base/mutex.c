/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * One-word locks based on futexes.
 */
#include "base/mutex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/likely.h"

/* 0: free, 1: held, 2: held, and other threads may be waiting. */
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

static __thread char this_thread __attribute__((tls_model("initial-exec")));

bool recursive_is_own(const struct recursive_mutex *lock)
{
	return atomic_load_explicit(&lock->owner, memory_order_relaxed) == &this_thread;
}

void recursive_lock(struct recursive_mutex *lock)
{
	if (!recursive_is_own(lock)) {
		mutex_lock(&lock->mutex);
		atomic_store_explicit(&lock->owner, &this_thread, memory_order_relaxed);
	}
	lock->depth++;
}

bool recursive_try_lock(struct recursive_mutex *lock)
{
	uint32_t free = 0;
	if (!atomic_compare_exchange_strong_explicit(&lock->mutex.word, &free, 1, memory_order_acquire, memory_order_relaxed))
		return false;
	atomic_store_explicit(&lock->owner, &this_thread, memory_order_relaxed);
	lock->depth++;
	return true;
}

void recursive_unlock(struct recursive_mutex *lock)
{
	if (--lock->depth > 0)
		return;
	atomic_store_explicit(&lock->owner, NULL, memory_order_relaxed);
	mutex_unlock(&lock->mutex);
}
