/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * GPU time of this process's launches, from events around some launches and known lengths of the others (lengths.h).
 */
#ifndef BUSY_H
#define BUSY_H

#include "throttle/launches.h"

/* Reserve a slot for a launch. Requires the throttle's lock. `all`: time it in any case. */
struct launch *busy_reserve(struct busy *, const struct work *, CUstream, struct others, bool all, int64_t now);
/* Call without the lock, directly before and after the launch. Untimed launches do not need the first call. */
bool busy_before(struct launch *, CUstream);	/* false: cannot be timed */
/* host_ns: host time of the launch, 0 if other launches were in flight. */
void busy_after(struct launch *, CUstream, bool timed, bool launched, int64_t host_ns);

/* Begin a check of finished work at one point in time. Must be ended, because the thread's capture mode is changed
 * during the check. */
struct asking { int64_t now_ns; bool begun; int mode; };
void busy_end_asking(struct asking *);

/* Return the next finished launch, false if none. *busy_ns is its GPU time, or its estimate if unknown. If it took
 * longer than usual and other work may be the reason, the usual time applies. */
bool busy_harvest(struct busy *, struct others, struct asking *, struct launch *done, int64_t *busy_ns);

#endif
