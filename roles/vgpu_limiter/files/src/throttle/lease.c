/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Leases of a turnstile.
 */
#include "throttle/lease.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "throttle/times.h"

#define MICROSECONDS ((UINT64_C(1) << 48) - 1)

static uint64_t lease_word(unsigned process, int64_t now, int64_t until)
{
	return (uint64_t)process << 48 | ((uint64_t)(earlier(until, now + LEASE_MAX_NS) / 1000) & MICROSECONDS);
}

static int64_t lease_end(uint64_t word) { return (int64_t)(word & MICROSECONDS) * 1000; }

static unsigned lease_process(uint64_t word, int64_t now)
{
	/* A lease that ends in the far future is forged, or was written before the clock was reset. */
	return lease_end(word) > now && lease_end(word) <= now + LEASE_MAX_NS + SKEW_NS ? (unsigned)(word >> 48) : 0;
}

/* Return the half of the lease that identifies the process, because a futex has 32 bits. The upper half changes when
 * another process takes the lease or the holder releases it. The lower half also changes at each renewal. */
static const void *naming_half(const _Atomic uint64_t *lease)
{
	return (const char *)lease + (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? 4 : 0);
}

unsigned turnstile_process(const struct turnstile *t, int seat, int64_t now)
{
	uint64_t word = atomic_load(&t->seats[seat]->lease);
	return word == t->doubts[seat].dead ? 0 : lease_process(word, now);
}

unsigned turnstile_last_process(const struct turnstile *t, int seat)
{
	return (unsigned)(atomic_load_explicit(&t->seats[seat]->lease, memory_order_relaxed) >> 48);
}

int turnstile_holder(const struct turnstile *t, int except, int64_t now)
{
	for (int i = 0; i < t->count; i++)
		if (turnstile_counts(t, i, except, now) && turnstile_process(t, i, now)) return i;
	return -1;
}

bool turnstile_take(struct turnstile *t, int seat, unsigned process, int64_t now, int64_t until)
{
	_Atomic uint64_t *lease = &t->seats[seat]->lease;
	uint64_t old = atomic_load(lease);
	unsigned sibling = old == t->doubts[seat].dead ? 0 : lease_process(old, now);
	if ((sibling != 0 && sibling != process) || turnstile_holder(t, seat, now) >= 0) return false;
	if (!atomic_compare_exchange_strong(lease, &old, lease_word(process, now, until))) return false;
	atomic_store(&t->seats[seat]->lease_since, now);
	if (turnstile_holder(t, seat, now) < 0) return true;
	turnstile_give(t, seat, process);
	return false;
}

bool turnstile_renew(struct turnstile *t, int seat, unsigned process, int64_t now, int64_t until)
{
	_Atomic uint64_t *lease = &t->seats[seat]->lease;
	uint64_t old = atomic_load(lease), new = lease_word(process, now, until);
	if (old >> 48 != process) return false;
	if (lease_process(old, now + LEASE_EDGE_NS) != process) return turnstile_take(t, seat, process, now, until);
	if (old >= new) return true;
	return atomic_compare_exchange_strong(lease, &old, new);
}

void turnstile_give(struct turnstile *t, int seat, unsigned process)
{
	_Atomic uint64_t *lease = &t->seats[seat]->lease;
	uint64_t old = atomic_load(lease);
	if (old >> 48 != process || !atomic_compare_exchange_strong(lease, &old, 0)) return;
	int error = errno;
	syscall(SYS_futex, naming_half(lease), FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	errno = error;
}

bool turnstile_is_second(const struct turnstile *t, int seat, int64_t now)
{
	int64_t since = atomic_load(&t->seats[seat]->lease_since);
	for (int i = 0; i < t->count; i++) {
		if (!turnstile_counts(t, i, seat, now) || !turnstile_process(t, i, now)) continue;
		int64_t others = atomic_load(&t->seats[i]->lease_since);
		if (others < since || (others == since && i < seat)) return true;
	}
	return false;
}

void turnstile_bury(struct turnstile *t, int seat, unsigned process)
{
	uint64_t word = atomic_load(&t->seats[seat]->lease);
	if (word >> 48 == process) t->doubts[seat].dead = word;
}

/* --- waiting for a lease --- */

struct watch turnstile_watch(const struct turnstile *t, int seat)
{
	const _Atomic uint64_t *lease = &t->seats[seat]->lease;
	return (struct watch){naming_half(lease), (uint32_t)(atomic_load(lease) >> 32)};
}

int64_t turnstile_watch_ns(const struct turnstile *t, int seat, int64_t now, int64_t most)
{
	return later(1000, earlier(most, lease_end(atomic_load(&t->seats[seat]->lease)) + 1000 - now));
}

/* The word may be in another tenant's read-only memory, on which the kernel can wait too. That tenant may send no
 * wake-ups, endless wake-ups or wrong values. So no sleep exceeds WATCH_NS, and a woken process checks the lease as
 * usual. After a useless wake-up or a failed sleep, the process sleeps for a short time. */
enum watched turnstile_sleep(struct watch watch, int64_t ns)
{
	int error = errno;
	struct timespec time = {0, (long)earlier(ns, WATCH_NS)};
	enum watched result = WATCHED_GIVEN;
	if (syscall(SYS_futex, watch.half, FUTEX_WAIT, watch.value, &time, NULL, 0) != 0)
		result = errno == ETIMEDOUT || errno == EINTR ? WATCHED_LONG : WATCHED_NOT;
	errno = error;
	return result;
}
