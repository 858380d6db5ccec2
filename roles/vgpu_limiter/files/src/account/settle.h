/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Once a second, update the charges for pools, graphs and the memory that NVML reports for this process.
 */
#ifndef SETTLE_H
#define SETTLE_H

#include "account/account.h"

void account_settle(struct account *, const struct quota *);

#endif
