/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Clocks set by an administrator: application clocks and locked ranges.
 */
#ifndef CLOCKS_H
#define CLOCKS_H

#include "host.h"

/* State after loading the driver: nothing locked, default application clocks. */
void clocks_reset(gpu_t *gpu);

/* Limits clocks to the set bounds. */
void clocks_limit(const gpu_t *gpu, int64_t *graphics_mhz, int64_t *memory_mhz);

#endif
