/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Decide which launches are timed.
 */
#include "throttle/sampling.h"

#include "throttle/lengths.h"

static bool has_dependent(const struct busy *b, CUstream stream)
{
	for (int i = 0; i < BUSY_DEPENDENT; i++)
		if (b->dependent[i] == stream && (unsigned)i < b->dependents)
			return true;
	return false;
}

void sampling_forget_stream(struct busy *b, CUstream stream)
{
	for (int i = 0; i < BUSY_DEPENDENT; i++)
		if (b->dependent[i] == stream)
			b->dependent[i] = (CUstream)-1;	/* no stream found */
}

/* Return how much work may run before the kernel's next timing. If launches are timed in rows, the distance grows with
 * the row's length. If the kernel's duration varies, the distance is shorter, so that each timing represents fewer
 * launches. */
static int64_t distance(struct busy *b, const struct estimate *e, bool row)
{
	int64_t each = (length_varies(e) ? BUSY_SAMPLE_NS / 4 : BUSY_SAMPLE_NS) * (row ? BUSY_WINDOW + 1 : 1);
	b->noise = b->noise * UINT32_C(1664525) + UINT32_C(1013904223);
	return each / 2 + ((each * (b->noise >> 16)) >> 16);
}

static bool its_turn(struct busy *b, struct estimate *e)
{
	bool in_window = b->window > 0;
	b->window -= in_window;
	e->left_ns -= e->ns > LENGTH_LEAST_NS ? e->ns : LENGTH_LEAST_NS;
	return in_window || e->left_ns <= 0 || e->unsettled > 0;
}

void sampling_choose(struct busy *b, struct launch *launch, bool all)
{
	struct estimate *e = length_find(b, launch->work.function, launch->work.shape);
	bool unknown = !e || e->once, in_window = b->window > 0;
	if (launch->work.dependent && !has_dependent(b, launch->stream))
		b->dependent[b->dependents++ % BUSY_DEPENDENT] = launch->stream;
	launch->edge = b->untimed > 0 && (b->untimed_mixed || b->untimed_stream != launch->stream);
	bool dependent = has_dependent(b, launch->stream);
	launch->learns = unknown && (!dependent || b->learners < BUSY_LEARNERS);
	launch->timed = launch->learns || all || (!unknown && !dependent && its_turn(b, e));
	b->learners += launch->learns;
	if (!launch->timed) {
		if (e)
			e->untimed = (struct sum){ e->untimed.count + 1, e->untimed.charged_ns + launch->estimate_ns };
		b->untimed_ns += launch->estimate_ns;
		b->untimed_mixed = launch->edge || (b->untimed > 0 && b->untimed_mixed);
		b->untimed_stream = launch->stream;
		b->untimed++;
		return;
	}
	/* The last launch of a window is not an edge of another window, because launches before the window have
	 * finished. */
	launch->edge = launch->edge && !in_window;
	if (launch->edge)
		b->window = BUSY_WINDOW;
	if (e)
		e->left_ns = distance(b, e, launch->edge || in_window);
	launch->untimed = e ? e->untimed : (struct sum){ 0 };
	if (e && !launch->edge)	/* an edge launch's own time is unknown, so do not learn from it */
		e->untimed = (struct sum){ 0 };
	launch->untimed_ns = b->untimed_ns;
	b->untimed_ns = 0;
}
