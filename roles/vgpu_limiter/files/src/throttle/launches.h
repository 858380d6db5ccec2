/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * A context's launches in flight, and the length of each kernel.
 */
#ifndef LAUNCHES_H
#define LAUNCHES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/cuda_abi.h"
#include "throttle/cover.h"
#include "throttle/work.h"

#define BUSY_SAMPLE_NS INT64_C(1000000)	/* average work between timings of a kernel of known length */

enum {
	BUSY_RING = 256,	/* limit of a context's launches not known to be done */
	BUSY_ESTIMATES = 1024,
	BUSY_WINDOW = 4,	/* launches measured in a row with several busy streams */
	BUSY_LEARNERS = 2,	/* concurrent launches timed to learn lengths in a stream with dependent launches */
	BUSY_DEPENDENT = 8,
};

/* Total of other work that makes a launch take longer. */
struct others {
	uint64_t held_ns;	/* delay of the tenant on its other GPUs, whose work may be waited for */
	uint64_t passes;	/* launches concurrent with the lease holder's */
};

/* A number of launches and their charge. */
struct sum { uint32_t count; int64_t charged_ns; };

enum launch_phase { LAUNCH_BEGUN, LAUNCH_RECORDED, LAUNCH_UNTIMED, LAUNCH_FAILED };

struct launch {
	CUevent begin, end;
	_Atomic int phase;	/* enum launch_phase */
	struct work work;
	CUstream stream;
	bool timed;		/* record events around it. Other launches are charged by their known length */
	bool together;		/* with work on other GPUs, for which it may wait. All such launches are timed */
	bool learns;		/* timed because the kernel's length is unknown or known from one launch only */
	bool edge;		/* earlier launches in other streams are untimed, so its own time cannot be separated */
	struct sum untimed;	/* launches of the same kernel since the last timed one */
	int64_t untimed_ns;	/* estimates of all launches of the context since the last timed one */
	int64_t asked_ns;	/* time of its start */
	int64_t charged_ns;	/* charge at its start */
	int64_t estimate_ns;	/* current estimate, raised if the kernel's other launches have become longer */
	bool charged;		/* the tenant's share was charged by the estimate */
	bool first;		/* no other work of the context was in flight, or a negligible amount */
	struct others others;	/* by then */
	int64_t ahead_ns;	/* estimated remaining time of work in flight then */
	int64_t host_ns;	/* host time of the launch, if `begin` was done when it returned */
	int64_t returned_ns;	/* return of the launch. The kernel begins no earlier */
};

struct busy {
	struct busy *next;
	CUcontext context;
	CUevent anchor;		/* finished, reference for the GPU's clock */
	int64_t anchor_ns;
	struct covered covered;
	uint32_t put, done;	/* total launches begun and finished */
	int64_t in_flight_ns;	/* estimates of unfinished launches */
	int64_t done_ns;	/* end of the last finished launch on the host's clock */
	int64_t ask_ns;		/* next time to ask the driver for the next launch */
	int64_t offset_ns;	/* upper bound of the host's clock minus the GPU's, */
	int64_t offset_at;	/* at this time, 0: unknown */
	int64_t untimed_ns;	/* estimates of launches since the last timed one */
	int64_t slack_ns;	/* total time between timed launches in which the untimed ones were not assumed to run, */
	int64_t excess_ns;	/* and the part in which they cannot have run */
	uint32_t untimed;	/* untimed launches in flight, */
	CUstream untimed_stream;	/* and their stream, */
	bool untimed_mixed;	/* or several streams */
	unsigned learners;	/* launches in flight timed to learn a length */
	int window;		/* number of further launches to time */
	uint32_t noise;		/* random state for sample distances. A fixed distance may match the program's rhythm */
	CUstream dependent[BUSY_DEPENDENT];	/* streams with dependent launches: no events between their launches */
	unsigned dependents;	/* total entries */
	struct launch ring[BUSY_RING];
	struct estimate {
		const void *function;
		uint64_t shape;
		int64_t ns;
		int64_t left_ns;	/* remaining work until the next timing */
		int odd;		/* 1: the last timing was much longer than usual, -1: shorter, */
		int64_t odd_ns;		/* with this time */
		int often;		/* recent frequency of unusual timings */
		int64_t slack_ns, excess_ns;	/* the context's counters at the last accounting of launch times */
		struct sum untimed;	/* launches since the last timing, */
		struct sum doubtful;	/* and before it if it was unusual */
		uint32_t unsettled;	/* further launches to time in a row */
		bool once;		/* timed once */
	} estimates[BUSY_ESTIMATES];
};

static inline bool busy_is_full(const struct busy *b) { return b->put - b->done == BUSY_RING; }
static inline bool busy_is_idle(const struct busy *b) { return b->put == b->done; }

#endif
