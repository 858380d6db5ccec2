/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * A context's launches in flight, and the known duration of each kernel.
 */
#ifndef LAUNCHES_H
#define LAUNCHES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/cuda_abi.h"
#include "throttle/cover.h"
#include "throttle/work.h"

#define BUSY_SAMPLE_NS INT64_C(1000000)	/* average work between two timings of a kernel of known duration */

enum {
	BUSY_RING = 256,	/* maximum launches of a context that are not known to be done */
	BUSY_ESTIMATES = 1024,
	BUSY_WINDOW = 4,	/* number of launches that are timed in a row while several streams are busy */
	BUSY_LEARNERS = 2,	/* maximum launches in flight that are timed to learn durations in a stream with dependent launches */
	BUSY_DEPENDENT = 8,
};

/* Totals of other work, which can delay a launch. */
struct others {
	uint64_t held_ns;	/* delay of the tenant on its other GPUs, because a launch may wait for work there, and GPU time of
				 * tenants that share the GPU at the same time (colocate_shared_ns) */
	uint64_t passes;	/* number of launches concurrent with a lease holder's work */
};

/* A number of launches and the time charged for them. */
struct sum { uint32_t count; int64_t charged_ns; };

enum launch_phase { LAUNCH_BEGUN, LAUNCH_RECORDED, LAUNCH_UNTIMED, LAUNCH_FAILED };

struct launch {
	CUevent begin, end;
	_Atomic int phase;	/* enum launch_phase */
	struct work work;
	CUstream stream;
	bool timed;		/* events are recorded around the launch. Other launches are charged with the known duration */
	bool together;		/* the launch may wait for work on the tenant's other GPUs. All such launches are timed */
	bool learns;		/* timed because the kernel's duration is unknown, or known from only one launch */
	bool edge;		/* earlier launches in other streams are untimed, so the launch's own time cannot be separated from theirs */
	struct sum untimed;	/* untimed launches of the same kernel before this one */
	int64_t untimed_ns;	/* estimated time of all untimed launches of the context before this one */
	int64_t asked_ns;	/* when the launch was requested */
	int64_t charged_ns;	/* GPU time charged when the launch was requested */
	int64_t estimate_ns;	/* current estimate. Raised if other launches of the kernel take longer than before */
	bool charged;		/* the tenant's share was charged with the estimate */
	bool first;		/* at the request, no other work of the context was in flight, or only a negligible amount */
	struct others others;	/* totals at the request */
	int64_t ahead_ns;	/* estimated remaining time of work in flight at the request */
	int64_t host_ns;	/* host time of the launch. Set only if `begin` was done when the launch returned */
	int64_t returned_ns;	/* when the launch call returned. The kernel begins no earlier */
};

struct busy {
	struct busy *next;
	CUcontext context;
	CUevent anchor;		/* a finished event. Times on the GPU's clock are relative to it */
	int64_t anchor_ns;
	struct covered covered;
	uint32_t put, done;	/* number of launches begun, and finished */
	int64_t in_flight_ns;	/* estimated time of unfinished launches */
	int64_t done_ns;	/* end of the last finished launch on the host's clock */
	int64_t ask_ns;		/* next time to query the driver for the oldest launch */
	int64_t offset_ns;	/* upper bound of the difference: host's clock minus GPU's clock */
	int64_t offset_at;	/* when offset_ns was measured, 0: unknown */
	int64_t untimed_ns;	/* estimated time of untimed launches since the last timed one */
	int64_t slack_ns;	/* total time between timed launches in which no untimed launch was assumed to run */
	int64_t excess_ns;	/* part of slack_ns in which no untimed launch can have run */
	uint32_t untimed;	/* number of untimed launches in flight */
	CUstream untimed_stream;	/* the stream of these launches */
	bool untimed_mixed;	/* these launches are in several streams */
	unsigned learners;	/* number of launches in flight that are timed to learn a duration */
	int window;		/* number of further launches to time in a row */
	uint32_t noise;		/* random state for the distance between timed launches. A fixed distance may match the program's rhythm */
	CUstream dependent[BUSY_DEPENDENT];	/* streams with dependent launches. Known kernels are not timed there */
	unsigned dependents;	/* number of entries ever added */
	struct launch ring[BUSY_RING];
	struct estimate {
		const void *function;
		uint64_t shape;
		int64_t ns;
		int64_t left_ns;	/* work that may run before the next timing */
		int odd;		/* 1: the last timed launch took much longer than usual. -1: much shorter. 0: usual */
		int64_t odd_ns;		/* duration of that unusual launch */
		int often;		/* how often recent timings were unusual */
		int64_t slack_ns, excess_ns;	/* the context's counters when launch times were last accounted for */
		struct sum untimed;	/* untimed launches since the last timing */
		struct sum doubtful;	/* untimed launches before the last timing, if that timing was unusual */
		uint32_t unsettled;	/* number of further launches to time in a row */
		bool once;		/* the duration is known from one launch only */
	} estimates[BUSY_ESTIMATES];
};

static inline bool busy_is_full(const struct busy *b) { return b->put - b->done == BUSY_RING; }
static inline bool busy_is_idle(const struct busy *b) { return b->put == b->done; }

#endif
