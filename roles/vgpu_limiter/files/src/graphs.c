/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Memory that graphs allocate: the driver holds it for each device in one place, and takes it when a
 * graph is launched. That cannot be taken back, so it is charged even where it goes beyond the quota:
 * the next allocation then finds no room.
 */
#include "tenant.h"

static void settle_graph_memory(struct state *state, const struct quota *quota, CUdevice device)
{
	int i = vgpu_gpu_of_device(quota, device), gpu = i < 0 ? -1 : quota->gpus[i].region;
	uint64_t bytes = 0;
	if (gpu < 0 || !HAVE(cuDeviceGetGraphMemAttribute))
		return;
	mutex_lock(&state->pools);
	uint64_t *charged = &state->graph_bytes[gpu];
	if (REAL(cuDeviceGetGraphMemAttribute)(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &bytes) == CUDA_SUCCESS) {
		if (bytes > *charged)
			tenant_add(state, gpu, bytes - *charged);
		else if (bytes < *charged)
			tenant_give_back(state, gpu, *charged - bytes);
		*charged = bytes;
	}
	mutex_unlock(&state->pools);
}

void settle_graphs(struct state *state, const struct quota *quota)
{
	for (CUdevice device = 0; device < DEVICES; device++)
		if (atomic_load_explicit(&state->device_known[device], memory_order_acquire))
			settle_graph_memory(state, quota, device);
}

void vgpu_graph_memory(CUdevice device)
{
	const struct quota *quota = vgpu_quota();
	if (quota)
		settle_graph_memory(vgpu_state(), quota, device);
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
	CUresult result = REAL(cuDeviceGraphMemTrim)(device);
	vgpu_graph_memory(device);
	return result;
}
