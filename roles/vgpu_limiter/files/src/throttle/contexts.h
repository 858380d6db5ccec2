/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The contexts of a GPU with launches of this process. Requires the throttle's lock.
 */
#ifndef THROTTLE_CONTEXTS_H
#define THROTTLE_CONTEXTS_H

#include "throttle/gpus.h"

/* NULL without launches in it, or if g is NULL. */
struct busy *find_busy(const struct throttle_gpu *g, CUcontext);
struct busy *add_busy(struct throttle_gpu *, CUcontext);	/* existing or new entry, NULL without memory */
void drop_busy(struct throttle_gpu *g, CUcontext);
/* Return the index of a context's GPU in the quota, -1 if not in it. Contexts with launches are known. For other
 * contexts the driver is asked, and the context must be the thread's. */
int gpu_of_context(const struct throttle *, CUcontext, bool is_current);

#endif
