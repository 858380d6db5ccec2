/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Holding launches back until the tenant's share allows them. launch.c asks before and tells after
 * each launch; nothing else of the library needs to know about it, but for contexts that end.
 */
#ifndef THROTTLE_H
#define THROTTLE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"

struct quota;
struct throttle_gpu;
struct seat;
struct launch;

enum { THROTTLE_GPUS = 16, THROTTLE_STREAMS = 64 };	/* as QUOTA_GPUS; of more streams the driver is asked again */

/* What is launched. Launches of a kernel in different shapes (grids and blocks) take different times. */
struct work {
	const void *function;	/* or graph */
	uint64_t shape;
	bool dependent;		/* may begin before the launch ahead of it has ended (programmatic dependent launch) */
};

/* Another GPU of the tenant. */
struct peer {
	bool looked;			/* for the tenant's seat there */
	bool page;			/* it is the agent's, and to be unmapped */
	struct seat *seat;		/* NULL: none */
	int64_t ahead;			/* by how many launches it was when a turn began: so many mean nothing */
};

/* What a process keeps; all zero at first, and again in a child of fork. */
struct throttle_state {
	_Atomic int off;			/* 1: no GPU of the quota is throttled; the launches' fast path */
	int64_t ask_agent_ns;			/* when to ask the agent again, */
	int64_t ask_change_ns;			/* and when at the earliest where it says that tenants have changed */
	bool no_agent;				/* it did not answer */
	bool blocking;				/* each launch waits for its kernel (CUDA_LAUNCH_BLOCKING) */
	_Atomic uint32_t lock;			/* a struct mutex (internal.h) */
	const struct quota *quota;		/* as of which `off` and the seats are */
	struct throttle_gpu *gpus[THROTTLE_GPUS];	/* by place in the quota; NULL: not used yet */
	struct peer peers[THROTTLE_GPUS];	/* likewise */
	struct { CUstream stream; CUcontext context; } streams[THROTTLE_STREAMS];	/* whose context is known, by a hash */
};

/* A launch on its way through; launch NULL: it is not throttled. */
struct passage {
	struct launch *launch;
	CUstream stream;
	CUcontext context;	/* the stream's, where the thread has another; or NULL */
	bool timed;
	int64_t began_ns;	/* when the driver was called, 0 where that is of no use */
};

/* Waits until the launch may go. */
struct passage throttle_enter(struct work, CUstream stream);
void throttle_leave(const struct passage *, CUresult);

/* Accounts for what is done: before a context is destroyed. What is still on its way then stays charged by estimate. */
void throttle_settle(void);
/* A context is about to be destroyed, or a primary context was (the driver says that it is not active
 * any more): its events are gone with it. */
void throttle_context_gone(CUcontext);
/* A stream is about to be destroyed. */
void throttle_stream_gone(CUstream);

#endif
