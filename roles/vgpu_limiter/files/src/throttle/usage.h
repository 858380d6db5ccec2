/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * A process's use of a GPU, charged to its tenant. Requires the throttle's lock.
 */
#ifndef USAGE_H
#define USAGE_H

#include "throttle/gpus.h"

void usage_spend(struct throttle_gpu *, int64_t asked, int64_t now, int64_t busy_ns);
/* Account for finished work. Return the estimated time of work still in flight. */
int64_t usage_harvest(struct throttle_gpu *, int64_t now, bool *idle);
/* Return whether other processes read the expected end of this GPU's work. */
bool usage_is_shown(const struct throttle *, const struct throttle_gpu *);
/* Write the expected end of this GPU's work into the tenant's seat. */
void usage_tell_due(struct throttle_gpu *);
/* Return the current totals of other work, which can delay a launch. */
struct others usage_of_others(const struct throttle_gpu *);

#endif
