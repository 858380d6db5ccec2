/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * A launch goes through if three things hold, and waits where one does not:
 *   1. the tenant has credit: its share of the time that went by covers the GPU time that it used
 *      (turnstile.h). What a launch will take is charged at once by estimate, and put right when it is
 *      measured: so a process that ends in between has paid. `contended` needs no credit while no other
 *      tenant wants the GPU; `burst` may run without, behind everybody who has some, and owes it.
 *   2. not too much work is on its way already: what is launched cannot be taken back.
 *   3. it is this process's turn. One throttled process has the GPU at a time, the others of its tenant
 *      included, for only then do the events tell what each used. The lease says until when at most; it
 *      is given back when the work is done and the turn over, or simply ends.
 *
 * Processes of a tenant on several GPUs may wait for each other within kernels (collective operations). What one of them
 * is denied then keeps the others' GPUs busy for nothing. So
 *   - tenants of equal rights take slots of the clock that are the same on all GPUs (turnstile_place);
 *   - credit is that of the tenant's richest GPU, within limits, so that it ends on all of them at once (lead);
 *   - a turn, or credit, that ends goes on until this GPU has been given as many launches as the tenant's others (behind);
 *   - where work on another GPU is overdue all the same, what is launched here goes first (hurry), in the end also beside
 *     the work of the lease's holder;
 *   - time in which a kernel can only have waited is not charged, and its usual length does not grow by it (busy.c).
 */
#ifndef ADMISSION_H
#define ADMISSION_H

#include "throttle/gpus.h"

enum reason { FOR_NOTHING, FOR_CREDIT, FOR_THE_GPU, FOR_ITS_TURN };

/* Requires the throttle's lock. Return the time to wait before the next check, with its reason. 0 starts the launch. */
int64_t hold_back(struct throttle *, int gpu, struct busy *, const struct work *, int64_t now, enum reason *);

#endif
