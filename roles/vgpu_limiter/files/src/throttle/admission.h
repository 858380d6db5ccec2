/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * A launch starts as soon as three conditions hold:
 *
 *   1. The tenant has credit: its share of the elapsed time covers the GPU time that it used (turnstile.h). The
 *      estimated time of a launch is charged at once and corrected after the measurement. So a process that ends
 *      earlier has already paid. With `contended`, no credit is needed while no other tenant wants the GPU. With
 *      `burst`, a tenant without credit may run after all tenants with credit, and goes into debt.
 *   2. The amount of work in flight is limited, because launches cannot be revoked.
 *   3. It is this process's turn. Only one throttled process at a time has the GPU, also among processes of one tenant.
 *      Otherwise events would not show each process's use. A lease limits the turn. The lease is released when the work
 *      is done and the turn is over. If it is not released, it expires.
 *
 * Processes of a tenant on several GPUs may wait for each other inside kernels (collective operations). If one of these
 * processes is blocked, the others keep their GPUs busy without progress. Therefore:
 *
 *   - Tenants with equal rights use time slots that are the same on all GPUs (turnstile_place).
 *   - The credit on each GPU is raised to the credit of the tenant's best GPU, within limits, so that it is used up on
 *     all GPUs at the same time (`lead`).
 *   - The end of a turn or of credit is postponed until this GPU got as many launches as the tenant's other GPUs
 *     (`behind`).
 *   - If work on another GPU of the tenant is still late, launches here go first (`hurry`), and finally run even
 *     concurrently with the lease holder's work.
 *   - Time in which a kernel can only have waited is not charged, and does not increase the kernel's usual duration
 *     (busy.c).
 */
#ifndef ADMISSION_H
#define ADMISSION_H

#include "throttle/gpus.h"

enum reason { FOR_NOTHING, FOR_CREDIT, FOR_THE_GPU, FOR_ITS_TURN };

/* Return the time to wait before the next check, and the reason. 0 means that the launch may start. Requires the
 * throttle's lock. */
int64_t hold_back(struct throttle *, int gpu, struct busy *, const struct work *, int64_t now, enum reason *);

#endif
