/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Choose which launches are timed. Events cost host time and prevent kernels from overlapping. Once the duration of a
 * kernel is known, a launch is timed only after about a millisecond of the kernel's work. Other launches are assumed to
 * take the known duration. The distance between timed launches is random, so that each launch is equally likely to be
 * timed.
 *
 * If several streams are busy, the time of a single launch cannot be separated from launches in other streams. Then a
 * row of launches is timed: the first one marks the end of earlier work, and the others share the time after it.
 *
 * In a stream with dependent launches (programmatic dependent launch), only kernels of unknown duration are timed. An
 * event would prevent the second launch from starting early.
 */
#ifndef SAMPLING_H
#define SAMPLING_H

#include "throttle/launches.h"

/* Decide whether to time a launch that has an entry in the ring. `all` times it in any case. */
void sampling_choose(struct busy *, struct launch *, bool all);
/* Forget a stream. Call this before the stream is destroyed. */
void sampling_forget_stream(struct busy *, CUstream);

#endif
