/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * How long the GPU was busy with what this process launched: by events around some launches, and by what is known of the
 * lengths of the others (lengths.h).
 */
#ifndef BUSY_H
#define BUSY_H

#include "throttle/launches.h"

/* A place for a launch, with the throttle's lock held. `all`: time it, whatever is known of it. */
struct launch *busy_reserve(struct busy *, const struct work *, CUstream, struct others, bool all, int64_t now);
/* Then, without the lock, just before and just after the launch. What is not timed needs no call of the first. */
bool busy_before(struct launch *, CUstream);	/* false: it cannot be timed */
/* host_ns: how long the launch took, 0 where others were on their way. */
void busy_after(struct launch *, CUstream, bool timed, bool launched, int64_t host_ns);

/* A look at what is done, at one time. It begins with no more than that time, and is to be ended: the thread's mode of captures
 * is another one while the driver is asked. */
struct asking { int64_t now_ns; bool begun; int mode; };
void busy_end_asking(struct asking *);

/* The next launch that is done; false if there is none. *busy_ns is what it took of the GPU, or was taken to need where
 * that cannot be told. Where it took longer than usual, and others can have been the reason, the usual is its own time. */
bool busy_harvest(struct busy *, struct others, struct asking *, struct launch *done, int64_t *busy_ns);

#endif
