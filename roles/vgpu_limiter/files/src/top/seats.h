/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * GPU usage of tenants. It is read from the agent's public data, or from the turnstile files if no agent runs.
 */
#ifndef TOP_SEATS_H
#define TOP_SEATS_H

#include "top/top.h"

struct shown_seat;
struct seats {
	int64_t time_ns;
	uint64_t count;
	struct shown_seat *list;
};

/* Read the agent's seats. Without an agent, there are none. */
void read_seats(struct seats *, const char *root, int64_t now_ns);
void read_turnstile(struct top_tenant *, int gpu, const char *root, const struct seats *, int64_t now_ns);

#endif
