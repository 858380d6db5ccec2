/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Stretches of time that may overlap, as those of launches in several streams do, and come a little out
 * of order: what each adds to their sum.
 */
#ifndef COVER_H
#define COVER_H

#include <stdint.h>

/* Time that was counted already, on the GPU's own clock: the last stretch without a gap, and where the
 * one before it ended. */
struct covered { int64_t floor, from, to; };

/* How much of the stretch from `from` to `to` was not counted before. */
int64_t busy_cover(struct covered *, int64_t from, int64_t to);

#endif
