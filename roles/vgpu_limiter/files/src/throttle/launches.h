/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * What is known of the launches of a context: those on their way, and how long each kernel takes.
 */
#ifndef LAUNCHES_H
#define LAUNCHES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/cuda_abi.h"
#include "throttle/cover.h"
#include "throttle/work.h"

#define BUSY_SAMPLE_NS INT64_C(1000000)	/* a kernel of known length is timed again after so much work of it, on average */

enum {
	BUSY_RING = 256,	/* launches of a context that are not known to be done */
	BUSY_ESTIMATES = 1024,
	BUSY_WINDOW = 4,	/* launches that are measured in a row where several streams have work */
	BUSY_LEARNERS = 2,	/* launches at once that are timed to learn lengths in a stream with dependent launches */
	BUSY_DEPENDENT = 8,
};

/* What others did that makes a launch take longer, in all. */
struct others {
	uint64_t held_ns;	/* the tenant was held back on its other GPUs: what is launched there may be waited for */
	uint64_t passes;	/* launches beside those of the lease's holder */
};

/* So many launches, and what they were charged. */
struct sum { uint32_t count; int64_t charged_ns; };

enum launch_phase { LAUNCH_BEGUN, LAUNCH_RECORDED, LAUNCH_UNTIMED, LAUNCH_FAILED };

struct launch {
	CUevent begin, end;
	_Atomic int phase;	/* enum launch_phase */
	struct work work;
	CUstream stream;
	bool timed;		/* events are to be recorded around it; others are taken to need what is known of their length */
	bool together;		/* with work on other GPUs, which it may wait for: all such launches are timed */
	bool learns;		/* it is timed as the length of its kernel is not known yet, or from one launch alone */
	bool edge;		/* launches ahead of it in other streams are not timed, so its own time cannot be told from theirs */
	struct sum untimed;	/* launches of the same since one was timed */
	int64_t untimed_ns;	/* estimates of all launches of the context since one was timed */
	int64_t asked_ns;	/* when it was let through */
	int64_t charged_ns;	/* what was charged for it then */
	int64_t estimate_ns;	/* what it is taken to need: more, if launches of the same have become longer since */
	bool charged;		/* the estimate was taken from the tenant's share */
	bool first;		/* nothing else of the context was on its way, or what is taken for next to nothing */
	struct others others;	/* by then */
	int64_t ahead_ns;	/* what was on its way then will take, as far as is known */
	int64_t host_ns;	/* how long the launch itself took, where `begin` was done when it returned */
	int64_t returned_ns;	/* when the launch returned: the kernel begins no earlier */
};

struct busy {
	struct busy *next;
	CUcontext context;
	CUevent anchor;		/* done; the GPU's clock is told from it */
	int64_t anchor_ns;
	struct covered covered;
	uint32_t put, done;	/* launches ever begun and known to be done */
	int64_t in_flight_ns;	/* what is begun and not done will take, by its estimates */
	int64_t done_ns;	/* when the last launch was done that is known to be, by the host's clock */
	int64_t ask_ns;		/* when to ask the driver again for the next one */
	int64_t offset_ns;	/* the host's clock less the GPU's, at most, */
	int64_t offset_at;	/* as of then; 0: not known */
	int64_t untimed_ns;	/* estimates of the launches since one was timed */
	int64_t slack_ns;	/* time between launches that were timed, in all, in which those between were not taken to run, */
	int64_t excess_ns;	/* and the time that those between cannot have had */
	uint32_t untimed;	/* launches in flight that are not timed, */
	CUstream untimed_stream;	/* and their stream, */
	bool untimed_mixed;	/* or there are several */
	unsigned learners;	/* launches in flight that are timed to learn a length */
	int window;		/* so many launches more are timed */
	uint32_t noise;		/* of the distance between samples: one that is fixed may fit a program's own rhythm */
	CUstream dependent[BUSY_DEPENDENT];	/* streams in which dependent launches were seen: no events between their launches */
	unsigned dependents;	/* ever put there */
	struct launch ring[BUSY_RING];
	struct estimate {
		const void *function;
		uint64_t shape;
		int64_t ns;
		int64_t left_ns;	/* work of it until it is timed again */
		int odd;		/* 1: the last one that was timed was much longer than usual; -1: shorter, */
		int64_t odd_ns;		/* and took so long */
		int often;		/* how often one is odd, lately */
		int64_t slack_ns, excess_ns;	/* the context's, when what launches took was last accounted for */
		struct sum untimed;	/* launches since one was timed, */
		struct sum doubtful;	/* and before it where it was odd */
		uint32_t unsettled;	/* so many more are timed in a row */
		bool once;		/* timed one time */
	} estimates[BUSY_ESTIMATES];
};

static inline bool busy_is_full(const struct busy *b) { return b->put - b->done == BUSY_RING; }
static inline bool busy_is_idle(const struct busy *b) { return b->put == b->done; }

#endif
