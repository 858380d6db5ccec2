/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * A cache of stream contexts: a hash table in which a new entry replaces the old one at its position.
 */
#include "throttle/stream_contexts.h"

#include "driver/streams.h"

static unsigned place_of_stream(CUstream stream)
{
	return (uint32_t)((uintptr_t)stream >> 4) * UINT32_C(2654435761) >> 26;	/* 6 bits, because THROTTLE_STREAMS is 64 */
}

CUcontext stream_context(const struct throttle *t, CUstream stream)
{
	unsigned i = place_of_stream(stream);
	return stream_is_object(stream) && t->streams[i].stream == stream ? t->streams[i].context : NULL;
}

void stream_context_is(struct throttle *t, CUstream stream, CUcontext context)
{
	unsigned i = place_of_stream(stream);
	t->streams[i].stream = stream;
	t->streams[i].context = context;
}

void stream_context_forget(struct throttle *t, CUstream stream)
{
	unsigned i = place_of_stream(stream);
	if (t->streams[i].stream == stream)
		t->streams[i].stream = NULL;
}

void stream_contexts_forget(struct throttle *t, CUcontext context)
{
	for (int i = 0; i < THROTTLE_STREAMS; i++)
		if (t->streams[i].context == context)
			t->streams[i].stream = NULL;
}
