/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Clocks that an administrator sets: application clocks, and ranges that the clocks are locked to.
 */
#ifndef CLOCKS_H
#define CLOCKS_H

#include "host.h"

/* Nothing locked, application clocks at their default: what a driver load leaves. */
void clocks_reset(gpu_t *gpu);

/* Keeps clocks within what was set. */
void clocks_limit(const gpu_t *gpu, int64_t *graphics_mhz, int64_t *memory_mhz);

#endif
