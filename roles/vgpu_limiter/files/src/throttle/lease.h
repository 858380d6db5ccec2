/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The lease: which process has the GPU until when, and how others wait for it.
 */
#ifndef LEASE_H
#define LEASE_H

#include "throttle/turnstile.h"

/* Return the process of the seat with a current lease, 0 without one. */
unsigned turnstile_process(const struct turnstile *t, int seat, int64_t now);
/* Return the process named by the seat's lease, even if the lease is over. */
unsigned turnstile_last_process(const struct turnstile *t, int seat);
/* Return the seat with the GPU, except `except` (or -1). -1 without one. */
int turnstile_holder(const struct turnstile *t, int except, int64_t now);
/* Take the GPU if no other seat and no other process of this seat has it. A lease ends at most LEASE_MAX_NS from
 * now. */
bool turnstile_take(struct turnstile *t, int seat, unsigned process, int64_t now, int64_t until);
/* Renew the own lease, or take it again after its end. False if another process has the GPU. */
bool turnstile_renew(struct turnstile *t, int seat, unsigned process, int64_t now, int64_t until);
/* Release the own lease and wake all waiters. */
void turnstile_give(struct turnstile *t, int seat, unsigned process);
/* Return whether another tenant also has the GPU and was first. One of the two was delayed between check and write. */
bool turnstile_is_second(const struct turnstile *t, int seat, int64_t now);
/* The process with the seat's lease is dead, so ignore this lease. */
void turnstile_bury(struct turnstile *t, int seat, unsigned process);

/* A watched lease: address and value of the half that identifies its process. */
struct watch {
	const void *half; /* NULL: no lease is watched */
	uint32_t value;
};
struct watch turnstile_watch(const struct turnstile *t, int seat);
/* Return the sleep time of a waiter: until the lease ends, at most `most`. */
int64_t turnstile_watch_ns(const struct turnstile *t, int seat, int64_t now, int64_t most);

enum watched {
	WATCHED_GIVEN, /* woken: the lease was released, or a neighbour claims so */
	WATCHED_LONG,  /* timeout or signal */
	WATCHED_NOT,   /* did not sleep: the lease has changed, or the kernel cannot wait for it */
};
/* Sleep until the lease is released, at most this long. The seat may be unmapped meanwhile. */
enum watched turnstile_sleep(struct watch watch, int64_t ns);

#endif
