/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Charge the memory of graphs.
 */
#include "account/graph_memory.h"

#include "account/devices.h"
#include "account/pool_blocks.h"
#include "account/sums.h"
#include "driver/reals.h"

bool graphs_reserved(CUdevice device, uint64_t *bytes)
{
	return HAVE(cuDeviceGetGraphMemAttribute)
	    && REAL(cuDeviceGetGraphMemAttribute)(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, bytes) == CUDA_SUCCESS;
}

bool graphs_charge_held(struct account *account, int gpu, uint64_t bytes, uint64_t limit)
{
	if (gpu == NO_PLACE)
		return bytes == 0;
	uint64_t *charged = &account->graph_bytes[gpu];
	if (bytes > *charged && !tenant_reserve(&account->tenant, gpu, bytes - *charged, limit))
		return false;
	tenant_note_peak(&account->tenant, gpu);
	if (bytes < *charged)
		tenant_give_back(&account->tenant, gpu, *charged - bytes);
	*charged = bytes;
	return true;
}

void graphs_settle(struct account *account, const struct quota *quota, CUdevice device)
{
	int i = device_in_quota(account, quota, device), gpu = i < 0 ? -1 : quota->gpus[i].region;
	uint64_t bytes = 0;
	if (gpu < 0)
		return;
	recursive_lock(&account->pools);
	if (graphs_reserved(device, &bytes))
		graphs_charge_held(account, gpu, bytes, UINT64_MAX);
	pools_leave(account);
}

void graphs_settle_all(struct account *account, const struct quota *quota)
{
	for (CUdevice device = 0; device < DEVICES; device++)
		if (atomic_load_explicit(&account->device_known[device], memory_order_acquire))
			graphs_settle(account, quota, device);
}
