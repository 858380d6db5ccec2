/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * How long kernels and graphs take: learned from launches that were timed.
 */
#ifndef LENGTHS_H
#define LENGTHS_H

#include "throttle/launches.h"

#define BUSY_UNKNOWN_NS INT64_C(2000000)	/* a kernel that has not been measured yet */
#define LENGTH_LEAST_NS INT64_C(1000)	/* what a launch counts for at least until the next is timed */

/* How long a kernel or graph took lately, or what it is taken for before it was measured. */
int64_t busy_estimate(const struct busy *, const struct work *, bool *known);
/* What is known of a function in a shape (0: in any); NULL: nothing. */
struct estimate *length_find(const struct busy *, const void *function, uint64_t shape);
/* Whether the kernel has several lengths, and is taken to need the average. */
bool length_varies(const struct estimate *);
/* A launch took so long. Returns what is to be charged for others of the same. */
int64_t length_learn(struct busy *, const struct launch *, int64_t ns);

#endif
