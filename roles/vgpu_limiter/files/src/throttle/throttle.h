/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Holding launches back until the tenant's share allows them. launch.c asks before and tells after
 * each launch; nothing else of the library needs to know about it, but for contexts that end.
 */
#ifndef THROTTLE_H
#define THROTTLE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cuda_abi.h"
#include "throttle/work.h"

struct launch;

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
