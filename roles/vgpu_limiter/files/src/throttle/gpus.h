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
	int64_t ahead;			/* by how many launches it was when a turn began: so many mean nothing */
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
