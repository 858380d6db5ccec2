/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Contexts take memory that no allocation shows: some hundred MiB each on large GPUs, and more where their limits are
 * raised. What one costs is learned from NVML, kept in the tenant's region by GPU, and reserved before the next is made.
 * NVML's figure for the process takes the place of what was reserved, once a second (nvml.c). Where NVML does not name
 * this process, what was reserved stays charged.
 */
#ifndef ACCOUNT_CONTEXTS_H
#define ACCOUNT_CONTEXTS_H

#include "account/charge.h"

/* What is being made, with what was reserved for it. */
struct making { struct target target; uint64_t bytes; };

/* Reserves for a context. False: out of memory. Not before a process's second context is NVML asked at once, if nothing is known
 * yet: programs of one context start without it. */
bool context_admit(struct account *, const struct quota *, struct making *);
/* The driver has answered; returns that. A primary context that two threads have made at once is one. */
CUresult context_made(struct account *, const struct making *, CUresult, CUcontext);
/* A context was destroyed. */
void context_is_gone(struct account *, CUcontext);

/* Reserves for a limit of the thread's context, of which `before` bytes become `wanted`. False: out of memory. */
bool context_limit_admit(struct account *, struct making *, uint64_t before, uint64_t wanted);
CUresult context_limit_set(struct account *, const struct making *, uint64_t before, uint64_t wanted, CUresult);

#endif
