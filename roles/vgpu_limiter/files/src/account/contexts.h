/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Contexts use memory that no allocation shows. On large GPUs a context uses some hundred MiB, and more if limits are
 * raised. The cost of a context is learned from NVML and stored per GPU in the tenant's region. This cost is reserved
 * before the next context is created. Once a second, NVML's value for the process replaces the reservation (nvml.c). If
 * NVML does not list the process, the reservation stays charged.
 */
#ifndef ACCOUNT_CONTEXTS_H
#define ACCOUNT_CONTEXTS_H

#include "account/charge.h"

/* A context that is being created, and its reservation. */
struct making { struct target target; uint64_t bytes; };

/* Reserve memory for a context. Return false if out of memory. NVML is queried only before a process creates its second
 * context, so that programs with one context start without a query. */
bool context_admit(struct account *, const struct quota *, struct making *);
/* Process the driver's result for a new context, and return it. Two threads may create the same primary context at
 * once. */
CUresult context_made(struct account *, const struct making *, CUresult, CUcontext);
/* Handle a destroyed context. */
void context_is_gone(struct account *, CUcontext);

/* Reserve memory to change a limit of the thread's context from `before` to `wanted` bytes. Return false if out of
 * memory. */
bool context_limit_admit(struct account *, struct making *, uint64_t before, uint64_t wanted);
CUresult context_limit_set(struct account *, const struct making *, uint64_t before, uint64_t wanted, CUresult);

#endif
