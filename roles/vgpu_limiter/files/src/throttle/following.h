/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Following the quota and the agent: which GPUs are throttled, and where their seats are. With the throttle's lock held.
 */
#ifndef FOLLOWING_H
#define FOLLOWING_H

#include "throttle/gpus.h"

/* The quota says something else now. Returns whether any GPU is throttled. */
bool follow_quota(struct throttle *, const struct quota *);
/* The agent's seats are used as soon as there are some. An agent that has lost them has others then. */
void follow_agent(struct throttle *, const struct quota *, int64_t now);
/* Whether it is time for that. */
bool follow_agent_is_due(const struct throttle *, const struct throttle_gpu *, int64_t now);
/* Begins to use a GPU. NULL: no memory. */
struct throttle_gpu *follow_start(struct throttle *, const struct quota *, int gpu, int64_t now);

#endif
