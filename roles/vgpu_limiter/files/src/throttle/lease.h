/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The lease: which process has the GPU, until when, and how others wait for that.
 */
#ifndef LEASE_H
#define LEASE_H

#include "throttle/turnstile.h"

/* The process of the seat that has the lease now; 0: none. */
unsigned turnstile_process(const struct turnstile *t, int seat, int64_t now);
/* The process that the seat's lease names, be it over or not. */
unsigned turnstile_last_process(const struct turnstile *t, int seat);
/* The seat that has the GPU, another than `except` (or -1); -1: none has. */
int turnstile_holder(const struct turnstile *t, int except, int64_t now);
/* Takes the GPU if no other seat has it, and no other process of this one. No lease runs longer than LEASE_MAX_NS from now. */
bool turnstile_take(struct turnstile *t, int seat, unsigned process, int64_t now, int64_t until);
/* Prolongs the own lease, or takes it again where it is over; false if another process has the GPU by now. */
bool turnstile_renew(struct turnstile *t, int seat, unsigned process, int64_t now, int64_t until);
/* Gives the own lease back, and wakes all that wait for that. */
void turnstile_give(struct turnstile *t, int seat, unsigned process);
/* Whether another tenant has the GPU too, and had it first: one of the two was held up between its look and its writing. */
bool turnstile_is_second(const struct turnstile *t, int seat, int64_t now);
/* The process that has the seat's lease is dead: that lease counts no more. */
void turnstile_bury(struct turnstile *t, int seat, unsigned process);

/* A lease that is waited for: half of its word, which names its process, and what that was. */
struct watch {
	const void *half; /* NULL: none is waited for */
	uint32_t value;
};
struct watch turnstile_watch(const struct turnstile *t, int seat);
/* For how long a waiter may sleep: until the lease ends by itself, and not longer than `most`. */
int64_t turnstile_watch_ns(const struct turnstile *t, int seat, int64_t now, int64_t most);

enum watched {
	WATCHED_GIVEN, /* it was woken: the lease was given back, or a neighbour says so */
	WATCHED_LONG,  /* the time is over, or a signal came */
	WATCHED_NOT,   /* it did not sleep: the lease has changed, or the kernel cannot wait for it */
};
/* Sleeps until the lease is given back, at most so long. The seat need not be mapped any more. */
enum watched turnstile_sleep(struct watch watch, int64_t ns);

#endif
