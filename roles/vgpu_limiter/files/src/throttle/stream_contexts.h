/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The contexts of streams, cached to avoid a driver call at each launch. Requires the throttle's lock.
 */
#ifndef STREAM_CONTEXTS_H
#define STREAM_CONTEXTS_H

#include "throttle/gpus.h"

/* NULL: unknown, or different for each thread or context. */
CUcontext stream_context(const struct throttle *, CUstream);
/* A stream keeps its context until it is destroyed. */
void stream_context_is(struct throttle *, CUstream, CUcontext);
void stream_context_forget(struct throttle *, CUstream);
void stream_contexts_forget(struct throttle *, CUcontext);

#endif
