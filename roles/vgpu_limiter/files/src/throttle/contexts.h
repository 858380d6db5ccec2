/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The contexts of a GPU in which this process launched work. Requires the throttle's lock.
 */
#ifndef THROTTLE_CONTEXTS_H
#define THROTTLE_CONTEXTS_H

#include "throttle/gpus.h"

/* Find a context. Return NULL if the context has no launches, or if `g` is NULL. */
struct busy *find_busy(const struct throttle_gpu *g, CUcontext);
struct busy *add_busy(struct throttle_gpu *, CUcontext);	/* returns the existing entry or a new one. NULL without memory */
void drop_busy(struct throttle_gpu *g, CUcontext);
/* Return the index in the quota of a context's GPU, or -1 if the quota does not list it. Contexts with launches are
 * known. For other contexts the driver is queried, so the context must be current in the thread. */
int gpu_of_context(const struct throttle *, CUcontext, bool is_current);

#endif
