/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * What a process keeps of a throttled GPU, and how it gets its tenant's seat at the GPU's turnstile.
 */
#ifndef SEAT_H
#define SEAT_H

#include <time.h>

#include "busy.h"
#include "internal.h"
#include "turnstile.h"

struct throttle_gpu {
	struct turnstile *turnstile;	/* NULL: there is none, each process is held back by itself */
	struct turnstile *mine;		/* the shared one, or one of this process alone */
	char path[512];
	uint64_t device, inode;		/* of the file that is mapped */
	int seat;			/* -1: none, as the quota names none (any more) */
	unsigned process;
	bool spent;			/* ran out of credit and waits for some */
	bool ending;			/* its turn is over as soon as its work is done */
	bool alone;			/* nobody else wants the GPU, as of looked_ns */
	int64_t looked_ns;		/* at the other seats */
	int64_t progress_ns;		/* when some of its work was last known to be done, or there was none */
	int64_t not_before;		/* leaves its turn to others until then */
	int64_t liveness_ns;		/* next time to ask */
	int sleepers;
	struct busy *contexts;		/* in which it has launched */
};

static inline int64_t now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * NS_PER_SECOND + now.tv_nsec;
}

/* Opens the GPU's turnstile and takes the tenant's seat there. NULL: no memory. */
struct throttle_gpu *seat_start(const struct quota *, const struct quota_gpu *);
/* What the quota says goes into the seat. */
void seat_take(struct throttle_gpu *, const struct quota *, const struct quota_gpu *);
/* The quota names no seat any more: it is not throttled here. */
void seat_leave(struct throttle_gpu *);
bool seat_holder_is_dead(const struct throttle_gpu *, unsigned holder);

#endif
