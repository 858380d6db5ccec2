/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The driver uses memory beyond a process's requests for the context, for modules and for rounding. No call shows this
 * memory. If NVML lists the process, the excess over the accounting is charged as `context` about once a second. If
 * NVML does not list the process, the reservation for contexts stays charged (contexts.c). The same applies in a
 * container with its own PID namespace, because there the same PID may belong to an unrelated process on the host.
 */
#ifndef ACCOUNT_NVML_H
#define ACCOUNT_NVML_H

#include "account/account.h"

/* Call from one thread at a time (account->settling). */
void nvml_settle(struct account *, const struct quota *);
/* Query NVML now, unless it was already queried for this process's contexts. */
void nvml_learn_now(struct account *, const struct quota *);

#endif
