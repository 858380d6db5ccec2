/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Sampling. Events cost host time, and keep kernels from overlapping. A kernel of known length is timed again only after
 * some millisecond of work of it, with two events; in between it is taken to need that length, and to be done when that time
 * has gone by. The distance between samples varies at random, so that on average each launch is as likely to be timed as any
 * other.
 * Where several streams have work, one launch's time cannot be told from what the other streams' launches took meanwhile.
 * There a row of launches is timed: the first ends what went before, and the others share what comes after.
 * In a stream with dependent launches (programmatic dependent launch) only kernels of unknown length are timed: an event
 * between two such launches would keep the second from starting early.
 */
#ifndef SAMPLING_H
#define SAMPLING_H

#include "throttle/launches.h"

/* Decide whether a launch with a slot in the ring is timed. `all`: in any case. */
void sampling_choose(struct busy *, struct launch *, bool all);
/* Handle a stream before its destruction. */
void sampling_forget_stream(struct busy *, CUstream);

#endif
