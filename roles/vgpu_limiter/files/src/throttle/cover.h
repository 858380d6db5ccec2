/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Sum time intervals that may overlap, for example those of launches in several streams. The intervals may arrive
 * slightly out of order.
 */
#ifndef COVER_H
#define COVER_H

#include <stdint.h>

/* The time that is already counted, on the GPU's clock: the last interval without a gap (`from`, `to`), and the end of
 * the interval before it (`floor`). */
struct covered { int64_t floor, from, to; };

/* Return the part of the interval from `from` to `to` that is not yet counted. */
int64_t busy_cover(struct covered *, int64_t from, int64_t to);

#endif
