/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * What a process has used of a GPU, and charging its tenant for that. With the throttle's lock held.
 */
#ifndef USAGE_H
#define USAGE_H

#include "throttle/gpu.h"

void usage_spend(struct throttle_gpu *, int64_t asked, int64_t now, int64_t busy_ns);
/* Accounts for what is done; returns the time that the rest will take. */
int64_t usage_harvest(struct throttle_gpu *, int64_t now, bool *idle);
/* Says in the tenant's seat when the work on this GPU should be done. */
void usage_tell_due(struct throttle_gpu *);
/* What others have done by now that makes a launch take longer. */
struct others usage_of_others(const struct throttle_gpu *);

#endif
