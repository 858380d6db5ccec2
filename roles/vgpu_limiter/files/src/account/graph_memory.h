/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Memory that graphs allocate. The driver holds it for each device in one place.
 */
#ifndef GRAPH_MEMORY_H
#define GRAPH_MEMORY_H

#include "account/charge.h"

bool graphs_reserved(CUdevice, uint64_t *bytes);
/* With account->pools held: what is charged for graphs on the GPU becomes `bytes`. False: it does not fit, and nothing has
 * changed. */
bool graphs_charge_held(struct account *, int gpu, uint64_t bytes, uint64_t limit);
/* What is charged becomes what the device's graphs hold now; or those of all devices that were used. */
void graphs_settle(struct account *, const struct quota *, CUdevice);
void graphs_settle_all(struct account *, const struct quota *);

#endif
