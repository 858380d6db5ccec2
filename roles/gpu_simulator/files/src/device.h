/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 */
#ifndef DEVICE_H
#define DEVICE_H

#include "host.h"

/* Returns how a GPU accesses system memory: ADDRESSING_*, or UNKNOWN if the GPU has no such mode. */
int64_t device_addressing_mode(const gpu_t *gpu);

#endif
