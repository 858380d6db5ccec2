/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Memory that graphs allocate. The driver holds it for each device in one place, takes it when a graph
 * is uploaded, and uploads a graph that was not when it is launched. What is launched cannot be taken
 * back, so a graph is uploaded first, and launched only if what that took fits.
 */
#include "allocations.h"
#include "tenant.h"

static bool reserved_on(CUdevice device, uint64_t *bytes)
{
	return HAVE(cuDeviceGetGraphMemAttribute)
	    && REAL(cuDeviceGetGraphMemAttribute)(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, bytes) == CUDA_SUCCESS;
}

/* With state->pools held. False: it does not fit, and nothing has changed. */
static bool set_charge(struct state *state, int gpu, uint64_t bytes, uint64_t limit)
{
	if (gpu == NO_PLACE)
		return bytes == 0;
	uint64_t *charged = &state->graph_bytes[gpu];
	if (bytes > *charged && !tenant_reserve(state, gpu, bytes - *charged, limit))
		return false;
	tenant_note_peak(state, gpu);
	if (bytes < *charged)
		tenant_give_back(state, gpu, *charged - bytes);
	*charged = bytes;
	return true;
}

static void settle_graph_memory(struct state *state, const struct quota *quota, CUdevice device)
{
	int i = vgpu_gpu_of_device(quota, device), gpu = i < 0 ? -1 : quota->gpus[i].region;
	uint64_t bytes = 0;
	if (gpu < 0)
		return;
	pools_lock(state);
	if (reserved_on(device, &bytes))
		set_charge(state, gpu, bytes, UINT64_MAX);
	pools_unlock(state);
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

/* --- before a launch --- */

/* With state->pools held, after an upload. */
static CUresult settle_upload(struct state *state, const struct target *target, uint64_t bytes)
{
	if (set_charge(state, target->gpu, bytes, target->limit_bytes))
		return CUDA_SUCCESS;
	if (target->gpu >= 0)
		settle_pools_held(state, target->gpu, true);
	if (set_charge(state, target->gpu, bytes, target->limit_bytes))
		return CUDA_SUCCESS;
	REAL(cuDeviceGraphMemTrim)(target->device);
	if (target->gpu < 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (reserved_on(target->device, &bytes))
		set_charge(state, target->gpu, bytes, UINT64_MAX);
	tenant_refused(state, target->gpu);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* A graph whose upload leaves its device without any graphs' memory has none, and is known by that. */
static CUresult upload(struct state *state, CUgraphExec graph, CUstream stream, const struct target *target,
                       CUresult real(CUgraphExec, CUstream))
{
	uint64_t bytes = 0;
	pools_lock(state);
	CUresult result = real(graph, stream);
	if (result == CUDA_SUCCESS && reserved_on(target->device, &bytes)) {
		result = settle_upload(state, target, bytes);
		if (bytes == 0)
			remember(state, T_GRAPH, (uintptr_t)graph, &(struct entry){ .gpu = -1 });
	}
	pools_unlock(state);
	return result;
}

static bool is_known_without_memory(struct state *state, CUgraphExec graph)
{
	mutex_lock(&state->tables_lock);
	bool known = table_find(&state->tables[T_GRAPH], (uintptr_t)graph) != NULL;
	mutex_unlock(&state->tables_lock);
	return known;
}

CUresult vgpu_graph_admit(CUgraphExec graph, CUstream stream, bool per_thread)
{
	struct target target = target_of_stream(stream);
	struct state *state = target.gpu != NOT_COUNTED ? vgpu_state() : NULL;
	if (!state || !graph || target.limit_bytes == UINT64_MAX || is_known_without_memory(state, graph)
	    || !HAVE(cuGraphUpload) || vgpu_is_capturing(stream, per_thread))
		return CUDA_SUCCESS;
	/* Where the upload fails by itself, so will the launch, and says why. */
	CUresult result = upload(state, graph, stream, &target, per_thread ? REAL(cuGraphUpload_ptsz) : REAL(cuGraphUpload));
	return result == CUDA_ERROR_OUT_OF_MEMORY ? result : CUDA_SUCCESS;
}

static CUresult upload_hook(CUgraphExec graph, CUstream stream, CUresult real(CUgraphExec, CUstream))
{
	struct target target = target_of_stream(stream);
	return target.gpu == NOT_COUNTED ? real(graph, stream) : upload(vgpu_state(), graph, stream, &target, real);
}

CUresult cuGraphUpload(CUgraphExec graph, CUstream stream) { return upload_hook(graph, stream, REAL(cuGraphUpload)); }
CUresult cuGraphUpload_ptsz(CUgraphExec graph, CUstream stream) { return upload_hook(graph, stream, REAL(cuGraphUpload_ptsz)); }

/* The next graph of this address may be another. */
CUresult cuGraphExecDestroy(CUgraphExec graph)
{
	struct state *state = vgpu_state();
	struct entry known;
	if (state)
		take_out(state, T_GRAPH, (uintptr_t)graph, &known);
	return REAL(cuGraphExecDestroy)(graph);
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
	CUresult result = REAL(cuDeviceGraphMemTrim)(device);
	vgpu_graph_memory(device);
	return result;
}
