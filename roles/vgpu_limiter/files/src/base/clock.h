/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Time in nanoseconds of CLOCK_MONOTONIC, which is the same for all processes of a host.
 */
#ifndef CLOCK_H
#define CLOCK_H

#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_MS INT64_C(1000000)
#define NS_PER_SECOND INT64_C(1000000000)

static inline int64_t ns_of_clock(clockid_t clock)
{
	struct timespec now;
	clock_gettime(clock, &now);
	return now.tv_sec * NS_PER_SECOND + now.tv_nsec;
}

static inline int64_t now_ns(void) { return ns_of_clock(CLOCK_MONOTONIC); }

/* Read the kernel's clock directly, because the program may replace the C library's clock functions. */
static inline int64_t kernel_ns(void)
{
	struct timespec now = { 0 };
	syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
	return now.tv_sec * NS_PER_SECOND + now.tv_nsec;
}

/* Cheap to read, but up to a few milliseconds behind. */
static inline int64_t coarse_ns(void) { return ns_of_clock(CLOCK_MONOTONIC_COARSE); }

#endif
