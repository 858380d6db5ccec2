/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * What a process keeps of all its throttled GPUs.
 */
#ifndef THROTTLE_GPUS_H
#define THROTTLE_GPUS_H

#include "base/mutex.h"
#include "throttle/gpu.h"

enum { THROTTLE_STREAMS = 64 };	/* of more streams the driver is asked again */

/* Another GPU of the tenant. */
struct peer {
	bool looked;			/* for the tenant's seat there */
	bool page;			/* it is the agent's, and to be unmapped */
	struct seat *seat;		/* NULL: none */
	int64_t ahead;			/* by how many launches it was at the last look, */
	int64_t begun;			/* and when a turn began */
	int64_t usual;			/* and is where both have been given the same: their processes may have begun at other counts */
	int64_t usual_ns;		/* when that was last so, or went past it; 0: not known yet */
	uint64_t turn;			/* launches here when the last turn began */
	int alike;			/* so many turns in a row have begun alike */
};

/* All zero at first. */
struct throttle {
	struct mutex lock;
	int64_t ask_agent_ns;			/* when to ask the agent again, */
	int64_t ask_change_ns;			/* and when at the earliest where it says that tenants have changed */
	bool no_agent;				/* it did not answer */
	bool blocking;				/* each launch waits for its kernel (CUDA_LAUNCH_BLOCKING) */
	const struct quota *quota;		/* as of which the seats are */
	struct throttle_gpu *gpus[QUOTA_GPUS];	/* by place in the quota; NULL: not used yet */
	struct peer peers[QUOTA_GPUS];		/* likewise */
	struct { CUstream stream; CUcontext context; } streams[THROTTLE_STREAMS];	/* whose context is known, by a hash */
};

#endif
