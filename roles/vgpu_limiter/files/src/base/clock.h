/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Time in nanoseconds of CLOCK_MONOTONIC, which the processes of a host share.
 */
#ifndef CLOCK_H
#define CLOCK_H

#include <stdint.h>
#include <time.h>

#define NS_PER_MS INT64_C(1000000)
#define NS_PER_SECOND INT64_C(1000000000)

static inline int64_t ns_of_clock(clockid_t clock)
{
	struct timespec now;
	clock_gettime(clock, &now);
	return now.tv_sec * NS_PER_SECOND + now.tv_nsec;
}

static inline int64_t now_ns(void) { return ns_of_clock(CLOCK_MONOTONIC); }

/* A few milliseconds old, and cheap. */
static inline int64_t coarse_ns(void) { return ns_of_clock(CLOCK_MONOTONIC_COARSE); }

#endif
