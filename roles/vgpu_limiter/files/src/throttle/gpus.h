/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * A process's state of all its throttled GPUs.
 */
#ifndef THROTTLE_GPUS_H
#define THROTTLE_GPUS_H

#include "base/mutex.h"
#include "throttle/gpu.h"

enum { THROTTLE_STREAMS = 64 };	/* with more streams, ask the driver again */

/* Another GPU of the tenant. */
struct peer {
	bool looked;			/* the seat was looked up */
	bool page;			/* memory of the agent, to be unmapped */
	struct seat *seat;		/* NULL: none */
	int64_t ahead;			/* difference of launches at the last check, */
	int64_t begun;			/* and at the start of the turn, */
	int64_t usual;			/* and when both had the same number: their processes may have started at different counts */
	int64_t usual_ns;		/* last time that this held or was passed, 0: unknown */
	uint64_t turn;			/* launches here at the start of the last turn */
	int alike;			/* turns in a row that began with the same difference */
};

/* Initially zero. */
struct throttle {
	struct mutex lock;
	int64_t ask_agent_ns;			/* next request to the agent, */
	int64_t ask_change_ns;			/* and earliest request after the agent reports a change */
	bool no_agent;				/* it did not answer */
	bool blocking;				/* each launch waits for its kernel (CUDA_LAUNCH_BLOCKING) */
	const struct quota *quota;		/* time of the seats' values */
	struct throttle_gpu *gpus[QUOTA_GPUS];	/* by index in the quota, NULL: not used yet */
	struct peer peers[QUOTA_GPUS];		/* by index in the quota, too */
	struct { CUstream stream; CUcontext context; } streams[THROTTLE_STREAMS];	/* with a known context, by a hash */
};

#endif
