/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Delay launches until the tenant's share allows them. launch.c calls the throttle before and after each launch. Other
 * parts of the library only report contexts and streams that end.
 */
#ifndef THROTTLE_H
#define THROTTLE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cuda_abi.h"
#include "throttle/work.h"

struct launch;

/* A launch in progress. It is not throttled if `launch` is NULL. */
struct passage {
	struct launch *launch;
	CUstream stream;
	CUcontext context;	/* the stream's context if the thread has another current context, else NULL */
	bool timed;
	int64_t began_ns;	/* start time of the driver call, 0 if not needed */
};

/* Wait until the launch may start. */
struct passage throttle_enter(struct work, CUstream stream);
void throttle_leave(const struct passage *, CUresult);

/* Account for finished work before a context is destroyed. For unfinished work, the estimated duration stays charged to
 * the tenant. */
void throttle_settle(void);
/* Call this after the program has waited for the GPU, so that offline tenants see at once that an online tenant is
 * done. */
void throttle_waited(void);
/* Call this before a context is destroyed, or after a primary context was destroyed (the driver then reports it as
 * inactive). The context's events are no longer valid. */
void throttle_context_gone(CUcontext);
/* Call this before a stream is destroyed. */
void throttle_stream_gone(CUstream);

#endif
