/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The lease shows which process has the GPU, and until when. Other processes wait for the lease.
 */
#ifndef LEASE_H
#define LEASE_H

#include "throttle/turnstile.h"

/* Return the process that holds the seat's lease, or 0 without a valid lease. */
unsigned turnstile_process(const struct turnstile *t, int seat, int64_t now);
/* Return the process in the seat's lease, even if the lease has ended. */
unsigned turnstile_last_process(const struct turnstile *t, int seat);
/* Return the seat that has the GPU, or -1 if none has it. Ignores the seat `except` (-1: none). */
int turnstile_holder(const struct turnstile *t, int except, int64_t now);
/* Take the GPU, unless another seat or another process of this seat has it. A lease ends at most LEASE_MAX_NS from
 * now. */
bool turnstile_take(struct turnstile *t, int seat, unsigned process, int64_t now, int64_t until);
/* Renew the own lease, or take it again if it has ended. Return false if another process has the GPU. */
bool turnstile_renew(struct turnstile *t, int seat, unsigned process, int64_t now, int64_t until);
/* Release the own lease, and wake all processes that wait for it. */
void turnstile_give(struct turnstile *t, int seat, unsigned process);
/* Return whether another tenant also has the GPU and took it earlier. This happens if one of the two processes was
 * delayed between its check and its write. */
bool turnstile_is_second(const struct turnstile *t, int seat, int64_t now);
/* Ignore the seat's lease, because its process is dead. */
void turnstile_bury(struct turnstile *t, int seat, unsigned process);

/* A watched lease: address and value of the half that identifies the process. */
struct watch {
	const void *half; /* NULL: no lease is watched */
	uint32_t value;
};
struct watch turnstile_watch(const struct turnstile *t, int seat);
/* Return how long a waiter sleeps: until the lease ends, but at most `most`. */
int64_t turnstile_watch_ns(const struct turnstile *t, int seat, int64_t now, int64_t most);

enum watched {
	WATCHED_GIVEN, /* woken, because the lease was released or another tenant claims so */
	WATCHED_LONG,  /* timeout or signal */
	WATCHED_NOT,   /* did not sleep, because the lease has changed or the kernel cannot wait for it */
};
/* Sleep until the lease is released, at most `ns`. The seat may be unmapped during the sleep. */
enum watched turnstile_sleep(struct watch watch, int64_t ns);

#endif
