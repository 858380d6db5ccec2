/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Follow the quota and the agent: which GPUs are throttled, and where their seats are. Requires the throttle's lock.
 */
#ifndef FOLLOWING_H
#define FOLLOWING_H

#include "throttle/gpus.h"

/* Apply a changed quota. Return whether any GPU is throttled. */
bool follow_quota(struct throttle *, const struct quota *);
/* Use the agent's seats as soon as they exist. After the agent lost its memory, its seats are new. */
void follow_agent(struct throttle *, const struct quota *, int64_t now);
/* Return whether a request is due. */
bool follow_agent_is_due(const struct throttle *, const struct throttle_gpu *, int64_t now);
/* Start using a GPU. NULL without memory. */
struct throttle_gpu *follow_start(struct throttle *, const struct quota *, int gpu, int64_t now);

#endif
