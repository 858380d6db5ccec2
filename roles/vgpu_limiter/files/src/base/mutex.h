/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Locks between the threads of a process. Zero means unlocked. A child of fork starts with zeroed memory, so its locks
 * are free.
 */
#ifndef MUTEX_H
#define MUTEX_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct mutex { _Atomic uint32_t word; };
void mutex_lock(struct mutex *);
void mutex_unlock(struct mutex *);

/* A recursive mutex. */
struct recursive_mutex {
	struct mutex mutex;
	_Atomic(const char *) owner;	/* the holding thread: address of a thread-local variable */
	unsigned depth;
};
void recursive_lock(struct recursive_mutex *);
bool recursive_try_lock(struct recursive_mutex *);	/* tries to lock. False if any thread, including this one, holds the mutex */
bool recursive_is_own(const struct recursive_mutex *);	/* whether this thread holds the mutex */
void recursive_unlock(struct recursive_mutex *);

#endif
