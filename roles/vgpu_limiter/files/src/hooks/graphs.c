/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Hooks of graphs that allocate memory. The driver keeps this memory in one pool per device, and allocates it when a
 * graph is uploaded. The first launch of a graph uploads it. A launch cannot be revoked, so this code uploads a graph
 * first, and launches it only if its memory fits.
 */
#include "hooks/graphs.h"

#include "account/graph_memory.h"
#include "account/holdings.h"
#include "account/pool_blocks.h"
#include "account/sums.h"
#include "driver/reals.h"
#include "driver/streams.h"
#include "process/state.h"
#include "process/target.h"

void vgpu_graph_memory(CUdevice device)
{
	const struct quota *quota = vgpu_quota();
	if (quota)
		graphs_settle(vgpu_account(), quota, device);
}

/* Charge the memory after an upload. Requires account->pools. */
static CUresult charge_upload(struct account *account, const struct target *target, uint64_t bytes)
{
	if (graphs_charge_held(account, target->gpu, bytes, target->limit_bytes))
		return CUDA_SUCCESS;
	if (target->gpu >= 0)
		settle_pools_held(account, target->gpu, true, NULL);
	if (graphs_charge_held(account, target->gpu, bytes, target->limit_bytes))
		return CUDA_SUCCESS;
	REAL(cuDeviceGraphMemTrim)(target->device);
	if (target->gpu < 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (graphs_reserved(target->device, &bytes))
		graphs_charge_held(account, target->gpu, bytes, UINT64_MAX);
	tenant_refused(&account->tenant, target->gpu);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Upload a graph. If the device has no graph memory after the upload, this graph allocates none. Record that in the
 * table. */
static CUresult upload(struct account *account, CUgraphExec graph, CUstream stream, const struct target *target,
                       CUresult real(CUgraphExec, CUstream))
{
	uint64_t bytes = 0;
	recursive_lock(&account->pools);
	CUresult result = real(graph, stream);
	if (result == CUDA_SUCCESS && graphs_reserved(target->device, &bytes)) {
		result = charge_upload(account, target, bytes);
		if (bytes == 0)
			remember(account, T_GRAPH, (uintptr_t)graph, &(struct entry){ .gpu = -1 });
	}
	pools_leave(account);
	return result;
}

static bool is_known_without_memory(struct account *account, CUgraphExec graph)
{
	mutex_lock(&account->tables.lock);
	bool known = table_find(&account->tables.table[T_GRAPH], (uintptr_t)graph) != NULL;
	mutex_unlock(&account->tables.lock);
	return known;
}

CUresult vgpu_graph_admit(CUgraphExec graph, CUstream stream, bool per_thread)
{
	struct target target = target_of_stream(stream);
	struct account *account = target.gpu != NOT_COUNTED ? vgpu_account() : NULL;
	if (!account || !graph || target.limit_bytes == UINT64_MAX || is_known_without_memory(account, graph)
	    || !HAVE(cuGraphUpload) || vgpu_is_capturing(stream, per_thread))
		return CUDA_SUCCESS;
	/* If the upload fails, the launch fails too and returns the error. */
	CUresult result = upload(account, graph, stream, &target, per_thread ? REAL(cuGraphUpload_ptsz) : REAL(cuGraphUpload));
	return result == CUDA_ERROR_OUT_OF_MEMORY ? result : CUDA_SUCCESS;
}

static CUresult upload_hook(CUgraphExec graph, CUstream stream, CUresult real(CUgraphExec, CUstream))
{
	struct target target = target_of_stream(stream);
	return target.gpu == NOT_COUNTED ? real(graph, stream) : upload(vgpu_account(), graph, stream, &target, real);
}

CUresult cuGraphUpload(CUgraphExec graph, CUstream stream) { return upload_hook(graph, stream, REAL(cuGraphUpload)); }
CUresult cuGraphUpload_ptsz(CUgraphExec graph, CUstream stream) { return upload_hook(graph, stream, REAL(cuGraphUpload_ptsz)); }

/* Forget the graph, because another graph may be created at the same address. */
CUresult cuGraphExecDestroy(CUgraphExec graph)
{
	struct account *account = vgpu_account();
	struct entry known;
	if (account)
		take_out(&account->tables, T_GRAPH, (uintptr_t)graph, &known);
	return REAL(cuGraphExecDestroy)(graph);
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
	CUresult result = REAL(cuDeviceGraphMemTrim)(device);
	vgpu_graph_memory(device);
	return result;
}
