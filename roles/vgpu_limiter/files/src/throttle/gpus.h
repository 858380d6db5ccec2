/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * A process's state for all its throttled GPUs.
 */
#ifndef THROTTLE_GPUS_H
#define THROTTLE_GPUS_H

#include "base/mutex.h"
#include "throttle/gpu.h"

enum { THROTTLE_STREAMS = 64 };	/* number of cached streams. The driver is queried for any others */

/* Another GPU of this tenant. */
struct peer {
	bool looked;			/* the seat was searched for */
	bool page;			/* `seat` is the agent's memory and has to be unmapped */
	struct seat *seat;		/* NULL: no seat */
	int64_t ahead;			/* launches there minus launches here, at the last check */
	int64_t begun;			/* the same difference at the start of the turn */
	int64_t usual;			/* the same difference if both are at the same step. Processes may have started at different counts */
	int64_t usual_ns;		/* last time at which the difference was `usual` or passed it, 0: unknown */
	uint64_t turn;			/* number of launches here at the start of the last turn */
	int alike;			/* number of turns in a row that began with the same difference */
};

/* Initially zero. */
struct throttle {
	struct mutex lock;
	int64_t ask_agent_ns;			/* time of the next query of the agent */
	int64_t ask_change_ns;			/* earliest time of a query after the agent reports a change */
	bool no_agent;				/* the agent did not answer */
	bool blocking;				/* each launch waits for its kernel (CUDA_LAUNCH_BLOCKING) */
	const struct quota *quota;		/* the quota that the seats' values are from */
	struct throttle_gpu *gpus[QUOTA_GPUS];	/* by index in the quota, NULL: not used yet */
	struct peer peers[QUOTA_GPUS];		/* by index in the quota */
	struct { CUstream stream; CUcontext context; } streams[THROTTLE_STREAMS];	/* cache of stream contexts, indexed by a hash */
};

#endif
