/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * A process's use of a GPU, charged to its tenant. Requires the throttle's lock.
 */
#ifndef USAGE_H
#define USAGE_H

#include "throttle/gpu.h"

void usage_spend(struct throttle_gpu *, int64_t asked, int64_t now, int64_t busy_ns);
/* Account for finished work. Return the estimated time of the rest. */
int64_t usage_harvest(struct throttle_gpu *, int64_t now, bool *idle);
/* Write the expected end of work on this GPU into the tenant's seat. */
void usage_tell_due(struct throttle_gpu *);
/* Return the current total of other work that makes a launch take longer. */
struct others usage_of_others(const struct throttle_gpu *);

#endif
