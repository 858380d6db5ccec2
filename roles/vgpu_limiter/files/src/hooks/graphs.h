/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Check the memory of graphs before and after their launches.
 */
#ifndef GRAPHS_H
#define GRAPHS_H

#include <stdbool.h>

#include "base/cuda_abi.h"

/* Call before a graph launch. CUDA_ERROR_OUT_OF_MEMORY if its memory does not fit. */
CUresult vgpu_graph_admit(CUgraphExec, CUstream, bool per_thread);
/* Call after a graph launch. Charges the current memory of the device's graphs. */
void vgpu_graph_memory(CUdevice device);

#endif
