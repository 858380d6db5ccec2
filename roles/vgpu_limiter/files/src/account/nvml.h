/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * What the driver takes for a process beyond what the process asks for (its context, modules, and
 * what allocations are rounded up to) is in no call. NVML knows it where it names this process: what
 * it says beyond what was counted is charged as `context`, about once a second. Where it does not, and in a
 * container with its own process numbers, where the number of this process may be a stranger's, what was
 * reserved for its contexts stays charged (contexts.c).
 */
#ifndef ACCOUNT_NVML_H
#define ACCOUNT_NVML_H

#include "account/account.h"

/* One thread at a time (account->settling). */
void nvml_settle(struct account *, const struct quota *);
/* Query NVML now if it was not queried for the GPUs of this process's contexts. */
void nvml_learn_now(struct account *, const struct quota *);

#endif
