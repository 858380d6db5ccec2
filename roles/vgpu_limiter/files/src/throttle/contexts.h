/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The contexts of a GPU in which this process has launched. With the throttle's lock held.
 */
#ifndef THROTTLE_CONTEXTS_H
#define THROTTLE_CONTEXTS_H

#include "throttle/gpus.h"

/* NULL: nothing was launched in it, or g is NULL. */
struct busy *find_busy(const struct throttle_gpu *g, CUcontext);
struct busy *add_busy(struct throttle_gpu *, CUcontext);	/* the one that is there, or a new one; NULL: no memory */
void drop_busy(struct throttle_gpu *g, CUcontext);
/* The GPU of a context, by its place in the quota; -1: none. Known is one in which something was launched; of any other the
 * driver is asked, and it must be the thread's. */
int gpu_of_context(const struct throttle *, CUcontext, bool is_current);

#endif
