/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Count overlapping intervals once.
 */
#include "throttle/cover.h"

int64_t busy_cover(struct covered *c, int64_t from, int64_t to)
{
	int64_t fresh;
	if (from < c->floor)
		from = c->floor;
	if (to <= from)
		return 0;
	if (from > c->to) {		/* the interval begins after a gap */
		*c = (struct covered){c->to, from, to};
		return to - from;
	}
	if (to < c->from)		/* the interval lies in the gap and does not touch the last interval */
		return to - from;
	fresh = (from < c->from ? c->from - from : 0) + (to > c->to ? to - c->to : 0);
	if (from < c->from)
		c->from = from;
	if (to > c->to)
		c->to = to;
	return fresh;
}
