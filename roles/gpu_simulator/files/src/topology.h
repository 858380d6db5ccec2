/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * How far apart two GPUs are.
 */
#ifndef TOPOLOGY_H
#define TOPOLOGY_H

#include "host.h"

/* nvmlGpuTopologyLevel_t; TOPOLOGY_UNKNOWN where the NUMA node of one is not known. */
unsigned topology_between(const gpu_t *one, const gpu_t *other);

#endif
