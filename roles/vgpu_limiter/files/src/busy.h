/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * How long the GPU was busy with what this process launched, by events around each launch.
 */
#ifndef BUSY_H
#define BUSY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"

#define BUSY_UNKNOWN_NS INT64_C(2000000)	/* a kernel that has not been measured yet */
#define BUSY_HOST_NS INT64_C(50000)	/* a launch takes no longer on the host, but for a function's first */

enum {
	BUSY_RING = 256,	/* launches of a context that are not known to be done */
	BUSY_ESTIMATES = 256,
};

/* Time that was counted already, on the GPU's own clock: the last stretch without a gap, and where the
 * one before it ended. */
struct covered { int64_t floor, from, to; };

/* What others did that makes a launch take longer, in all. */
struct others {
	uint64_t held_ns;	/* the tenant was held back on its other GPUs: what is launched there may be waited for */
	uint64_t passes;	/* launches beside those of the lease's holder */
};

enum launch_phase { LAUNCH_BEGUN, LAUNCH_RECORDED, LAUNCH_UNTIMED, LAUNCH_FAILED };

struct launch {
	CUevent begin, end;
	_Atomic int phase;	/* enum launch_phase */
	const void *function;
	int64_t asked_ns;	/* when it was let through */
	int64_t estimate_ns;
	bool charged;		/* the estimate was taken from the tenant's share */
	bool first;		/* nothing else of the context was on its way */
	struct others others;	/* by then */
	int64_t host_ns;	/* how long the launch itself took after `begin` was done: no time of the GPU */
};

struct busy {
	struct busy *next;
	CUcontext context;
	CUevent anchor;		/* done; the GPU's clock is told from it */
	int64_t anchor_ns;
	struct covered covered;
	uint32_t put, done;	/* launches ever begun and known to be done */
	int64_t in_flight_ns;	/* what is begun and not done will take, by its estimates */
	struct launch ring[BUSY_RING];
	struct { const void *function; int64_t ns; bool once; } estimates[BUSY_ESTIMATES];	/* once: measured one time */
};

/* How much of the stretch from `from` to `to` was not counted before. */
int64_t busy_cover(struct covered *, int64_t from, int64_t to);

/* How long a kernel or graph took lately, or what it is taken for before it was measured. */
int64_t busy_estimate(const struct busy *, const void *function, bool *known);
static inline bool busy_is_full(const struct busy *b) { return b->put - b->done == BUSY_RING; }
static inline bool busy_is_idle(const struct busy *b) { return b->put == b->done; }

/* A place for a launch, with the throttle's lock held; then, without it, just before and just after
 * the launch. */
struct launch *busy_reserve(struct busy *, const void *function, struct others, int64_t now);
bool busy_before(struct launch *, CUstream);	/* false: it cannot be timed */
/* host_ns: how long the launch took, 0 where others were on their way. */
void busy_after(struct launch *, CUstream, bool timed, bool launched, int64_t host_ns);

/* The next launch that is done; false if there is none. *busy_ns is what it took of the GPU, or was taken to need where
 * that cannot be told. Where it took longer than usual, and others can have been the reason, the usual is its own time. */
bool busy_harvest(struct busy *, struct others, struct launch *done, int64_t *busy_ns);

#endif
