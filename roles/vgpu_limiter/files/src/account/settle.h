/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Once a second, update the charge of pools, graphs and NVML's value for this process.
 */
#ifndef SETTLE_H
#define SETTLE_H

#include "account/account.h"

void account_settle(struct account *, const struct quota *);

#endif
