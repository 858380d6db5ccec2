/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Sum time intervals that may overlap, as for launches in several streams, and arrive slightly out of order.
 */
#ifndef COVER_H
#define COVER_H

#include <stdint.h>

/* Already counted time on the GPU's clock: the last interval without a gap, and the end of the interval before it. */
struct covered { int64_t floor, from, to; };

/* Return the part of the interval from `from` to `to` that was not counted before. */
int64_t busy_cover(struct covered *, int64_t from, int64_t to);

#endif
