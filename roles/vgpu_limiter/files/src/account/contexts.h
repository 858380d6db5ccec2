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

/* A context being created, with its reservation. */
struct making { struct target target; uint64_t bytes; };

/* Reserve memory for a context. False if out of memory. Queries NVML only before a process's second context, so that
 * programs with one context start without it. */
bool context_admit(struct account *, const struct quota *, struct making *);
/* Process the driver's result and return it. Two threads may create the same primary context at once. */
CUresult context_made(struct account *, const struct making *, CUresult, CUcontext);
/* Handle a destroyed context. */
void context_is_gone(struct account *, CUcontext);

/* Reserve memory to change a limit of the thread's context from `before` to `wanted` bytes. False if out of memory. */
bool context_limit_admit(struct account *, struct making *, uint64_t before, uint64_t wanted);
CUresult context_limit_set(struct account *, const struct making *, uint64_t before, uint64_t wanted, CUresult);

#endif
