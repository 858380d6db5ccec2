/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * A launch starts if three conditions hold, and waits otherwise:
 *   1. The tenant has credit: its share of elapsed time covers the GPU time that it used (turnstile.h). The estimate
 *      for a launch is charged at once, and corrected after the measurement, so a process that ends meanwhile has paid.
 *      `contended` needs no credit while no other tenant wants the GPU. `burst` may run without credit, after all tenants
 *      with credit, and owes the time.
 *   2. Not too much work is in flight, because launches cannot be revoked.
 *   3. It is this process's turn. One throttled process has the GPU at a time, also among processes of its tenant,
 *      because otherwise events do not show each process's use. The lease limits the turn. It is released when the work
 *      is done and the turn is over, or it expires.
 *
 * Processes of a tenant on several GPUs may wait for each other inside kernels (collective operations). If one of them
 * is blocked, the others keep their GPUs busy without progress. So
 *   - tenants of equal rights use clock slots that are the same on all GPUs (turnstile_place);
 *   - credit is that of the tenant's best GPU, within limits, so that it ends on all of them at once (lead);
 *   - an ending turn or credit is extended until this GPU got as many launches as the tenant's others (behind);
 *   - if work on another GPU is still overdue, launches here go first (hurry), in the end even concurrently with the
 *     lease holder's work;
 *   - time in which a kernel can only have waited is not charged, and does not increase its usual length (busy.c).
 */
#ifndef ADMISSION_H
#define ADMISSION_H

#include "throttle/gpus.h"

enum reason { FOR_NOTHING, FOR_CREDIT, FOR_THE_GPU, FOR_ITS_TURN };

/* Requires the throttle's lock. Return the time to wait before the next check, with its reason. 0 starts the launch. */
int64_t hold_back(struct throttle *, int gpu, struct busy *, const struct work *, int64_t now, enum reason *);

#endif
