/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Estimate the GPU time of this process's kernel launches. Some launches are timed with events. For the others, known
 * durations are used (lengths.h).
 */
#ifndef BUSY_H
#define BUSY_H

#include "throttle/launches.h"

/* Reserve an entry for a launch. Requires the throttle's lock. `all` times the launch in any case. */
struct launch *busy_reserve(struct busy *, const struct work *, CUstream, struct others, bool all, int64_t now);
/* Call these functions without the lock, directly before and after the launch. Untimed launches do not need
 * busy_before. */
bool busy_before(struct launch *, CUstream);	/* false: the launch cannot be timed */
/* host_ns is the host time of the launch, or 0 if other launches were in flight. */
void busy_after(struct launch *, CUstream, bool timed, bool launched, int64_t host_ns);

/* A check of which launches have finished. Always end it with busy_end_asking, because the thread's capture mode is
 * changed during the check. */
struct asking { int64_t now_ns; bool begun; int mode; };
void busy_end_asking(struct asking *);

/* Get the next finished launch. Return false if there is none. *busy_ns is its GPU time, or the estimate if its time is
 * unknown. If other work may have prolonged the launch, *busy_ns is the usual time. */
bool busy_harvest(struct busy *, struct others, struct asking *, struct launch *done, int64_t *busy_ns);

#endif
