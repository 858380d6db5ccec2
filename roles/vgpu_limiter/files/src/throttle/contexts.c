/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * A list of contexts for each GPU. A list suffices, because a process has few contexts.
 */
#include "throttle/contexts.h"

#include <stdlib.h>

#include "process/target.h"

struct busy *find_busy(const struct throttle_gpu *g, CUcontext context)
{
	struct busy *b = g ? g->contexts : NULL;
	while (b && b->context != context)
		b = b->next;
	return b;
}

int gpu_of_context(const struct throttle *t, CUcontext context, bool is_current)
{
	for (int i = 0; i < t->quota->gpu_count; i++)
		if (find_busy(t->gpus[i], context))
			return i;
	return is_current ? vgpu_gpu_of_current_context(t->quota) : -1;
}

struct busy *add_busy(struct throttle_gpu *g, CUcontext context)
{
	struct busy *b = find_busy(g, context);
	if (!b && (b = calloc(1, sizeof *b))) {
		b->context = context;
		b->noise = g->process;
		b->next = g->contexts;
		g->contexts = b;
	}
	return b;
}

void drop_busy(struct throttle_gpu *g, CUcontext context)
{
	struct busy **at = g ? &g->contexts : NULL;
	while (at && *at && (*at)->context != context)
		at = &(*at)->next;
	if (!at || !*at)
		return;
	/* The duration of unfinished work is unknown, so the estimate stays charged to the tenant. */
	struct busy *gone = *at;
	*at = gone->next;
	free(gone);
}
