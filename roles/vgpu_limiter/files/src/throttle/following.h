/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Apply changes of the quota and of the agent: which GPUs are throttled, and where the seats are. Requires the
 * throttle's lock.
 */
#ifndef FOLLOWING_H
#define FOLLOWING_H

#include "throttle/gpus.h"

/* Apply a changed quota. Return whether it throttles any GPU. */
bool follow_quota(struct throttle *, const struct quota *);
/* Use the agent's seats as soon as they exist. If the agent lost its memory, its seats are new. */
void follow_agent(struct throttle *, const struct quota *, int64_t now);
/* Return whether a query of the agent is due. */
bool follow_agent_is_due(const struct throttle *, const struct throttle_gpu *, int64_t now);
/* Start using a GPU. Return NULL without memory. */
struct throttle_gpu *follow_start(struct throttle *, const struct quota *, int gpu, int64_t now);

#endif
