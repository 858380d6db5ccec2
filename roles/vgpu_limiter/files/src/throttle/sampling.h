/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Sampling. Events cost host time and prevent kernels from overlapping. A kernel of known length is timed with two
 * events only after about a millisecond of its work. Other launches are assumed to take that length. The distance
 * between samples is random, so that on average each launch is equally likely to be timed. With several busy streams, a
 * single launch's time cannot be separated from the other streams' launches. Then a row of launches is timed: the first
 * one ends earlier work, and the others share the time after it. In a stream with dependent launches (programmatic
 * dependent launch), only kernels of unknown length are timed, because an event would stop the second launch from
 * starting early.
 */
#ifndef SAMPLING_H
#define SAMPLING_H

#include "throttle/launches.h"

/* Decide whether a launch with a slot in the ring is timed. `all`: in any case. */
void sampling_choose(struct busy *, struct launch *, bool all);
/* Handle a stream before its destruction. */
void sampling_forget_stream(struct busy *, CUstream);

#endif
