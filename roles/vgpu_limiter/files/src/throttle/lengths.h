/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Durations of kernels and graphs, learned from timed launches.
 */
#ifndef LENGTHS_H
#define LENGTHS_H

#include "throttle/launches.h"

#define BUSY_UNKNOWN_NS INT64_C(2000000)	/* assumed duration of a kernel that was never measured */
#define LENGTH_LEAST_NS INT64_C(1000)	/* minimum time charged for a launch until the next timing */

/* Return the recent duration of a kernel or graph, or an assumed one before the first measurement. */
int64_t busy_estimate(const struct busy *, const struct work *, bool *known);
/* Return the data of a kernel with this shape (0: any shape), or NULL if it is unknown. */
struct estimate *length_find(const struct busy *, const void *function, uint64_t shape);
/* Return whether the kernel has several durations and is charged with its average. */
bool length_varies(const struct estimate *);
/* Learn from a launch's time. Return the correction for other launches of the same kernel. */
int64_t length_learn(struct busy *, const struct launch *, int64_t ns);

#endif
