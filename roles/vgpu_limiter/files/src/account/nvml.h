/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Memory that the driver uses beyond the requests of a process (context, modules, rounding) is in no call. If NVML
 * lists the process, the excess over the accounting is charged as `context` about once a second. Otherwise, and in a
 * container with its own PID namespace, where the same PID may be an unrelated process, the reservation for contexts
 * stays charged (contexts.c).
 */
#ifndef ACCOUNT_NVML_H
#define ACCOUNT_NVML_H

#include "account/account.h"

/* One thread at a time (account->settling). */
void nvml_settle(struct account *, const struct quota *);
/* Query NVML now if it was not queried for the GPUs of this process's contexts. */
void nvml_learn_now(struct account *, const struct quota *);

#endif
