/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Clocks set by an administrator: application clocks and locked ranges.
 */
#ifndef CLOCKS_H
#define CLOCKS_H

#include "host.h"

/* Sets the state as after a start of the driver: no locked clocks, and default application clocks. */
void clocks_reset(gpu_t *gpu);

/* Limits the clocks to the bounds that an administrator has set. */
void clocks_limit(const gpu_t *gpu, int64_t *graphics_mhz, int64_t *memory_mhz);

#endif
