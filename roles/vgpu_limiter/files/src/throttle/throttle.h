/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Delay launches until the tenant's share allows them. launch.c calls it before and after each launch. The rest of the
 * library only reports contexts that end.
 */
#ifndef THROTTLE_H
#define THROTTLE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cuda_abi.h"
#include "throttle/work.h"

struct launch;

/* A launch in progress. With `launch` NULL it is not throttled. */
struct passage {
	struct launch *launch;
	CUstream stream;
	CUcontext context;	/* the stream's context if the thread has another one, else NULL */
	bool timed;
	int64_t began_ns;	/* time of the driver call, 0 if not needed */
};

/* Wait until the launch may start. */
struct passage throttle_enter(struct work, CUstream stream);
void throttle_leave(const struct passage *, CUresult);

/* Account for finished work before a context is destroyed. Work in flight stays charged by estimate. */
void throttle_settle(void);
/* A context is about to be destroyed, or a primary context was destroyed (the driver reports it as inactive). Its
 * events are invalid. */
void throttle_context_gone(CUcontext);
/* Handle a stream before its destruction. */
void throttle_stream_gone(CUstream);

#endif
