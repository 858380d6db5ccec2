/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 */
#ifndef DEVICE_H
#define DEVICE_H

#include "host.h"

/* How a GPU reaches memory of the system: ADDRESSING_*, or UNKNOWN without such a mode. */
int64_t device_addressing_mode(const gpu_t *gpu);

#endif
