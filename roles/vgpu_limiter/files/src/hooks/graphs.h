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

/* Call this before a graph launch. Returns CUDA_ERROR_OUT_OF_MEMORY if the graph's memory does not fit. */
CUresult vgpu_graph_admit(CUgraphExec, CUstream, bool per_thread);
/* Call this after a graph launch. Charges the memory that graphs of the device currently hold. */
void vgpu_graph_memory(CUdevice device);

#endif
