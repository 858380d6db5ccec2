/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Memory that graphs allocate. The driver keeps it in one pool per device.
 */
#ifndef GRAPH_MEMORY_H
#define GRAPH_MEMORY_H

#include "account/charge.h"

bool graphs_reserved(CUdevice, uint64_t *bytes);
/* Set the charge for graphs on the GPU to `bytes`. Requires account->pools. If `bytes` does not fit, return false and
 * change nothing. */
bool graphs_charge_held(struct account *, int gpu, uint64_t bytes, uint64_t limit);
/* Charge the memory that graphs currently hold on the device, or on all used devices. */
void graphs_settle(struct account *, const struct quota *, CUdevice);
void graphs_settle_all(struct account *, const struct quota *);

#endif
