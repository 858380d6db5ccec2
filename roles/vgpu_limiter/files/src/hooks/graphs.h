/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Memory of graphs, around their launches.
 */
#ifndef GRAPHS_H
#define GRAPHS_H

#include <stdbool.h>

#include "base/cuda_abi.h"

/* Before a graph is launched: CUDA_ERROR_OUT_OF_MEMORY where its memory does not fit. */
CUresult vgpu_graph_admit(CUgraphExec, CUstream, bool per_thread);
/* After a graph was launched: charges what the device's graphs hold now. */
void vgpu_graph_memory(CUdevice device);

#endif
