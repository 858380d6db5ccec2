/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Distance between two GPUs.
 */
#ifndef TOPOLOGY_H
#define TOPOLOGY_H

#include "host.h"

/* Returns the nvmlGpuTopologyLevel_t between two GPUs, or TOPOLOGY_UNKNOWN if a NUMA node is unknown. */
unsigned topology_between(const gpu_t *one, const gpu_t *other);

#endif
