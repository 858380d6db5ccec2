/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Cache the contexts of streams, to avoid a driver call at each launch. Requires the throttle's lock.
 */
#ifndef STREAM_CONTEXTS_H
#define STREAM_CONTEXTS_H

#include "throttle/gpus.h"

/* Return a stream's context, or NULL if it is unknown or differs between threads or contexts. */
CUcontext stream_context(const struct throttle *, CUstream);
/* Record a stream's context. A stream keeps its context until the stream is destroyed. */
void stream_context_is(struct throttle *, CUstream, CUcontext);
void stream_context_forget(struct throttle *, CUstream);
void stream_contexts_forget(struct throttle *, CUcontext);

#endif
