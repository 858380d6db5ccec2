/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * What the driver takes for a process beyond what the process asks for (its context, modules, and
 * what allocations are rounded up to) is in no call. NVML knows it where it names this process: what
 * it says beyond what was counted is charged as `context`, about once a second. Where it does not, and in a
 * container with its own process numbers, where the number of this process may be a stranger's, what was
 * reserved for its contexts stays charged (contexts.c).
 */
#include <unistd.h>

#include "tenant.h"

enum { LISTED = 1024 };
#define SELDOM_NS (60 * INT64_C(1000000000))

static bool uses_cuda(const struct state *state)
{
	for (int device = 0; device < DEVICES; device++)
		if (atomic_load_explicit(&state->device_known[device], memory_order_relaxed))
			return true;
	return false;
}

static bool start(struct state *state)
{
	if (!state->nvml_started)
		state->nvml_started = vgpu_load_nvml() && HAVE(nvmlInit_v2) && REAL(nvmlInit_v2)() == NVML_SUCCESS;
	return state->nvml_started;
}

/* False: NVML does not name this process on the GPU. An entry for each MIG instance, so it is a sum. */
static bool bytes_by_nvml(const struct quota_gpu *gpu, uint64_t *bytes)
{
	static nvmlProcessInfo_t listed[LISTED];	/* state->settling keeps it to one thread */
	nvmlDevice_t device;
	unsigned count = LISTED, pid = (unsigned)getpid();
	bool named = false;
	*bytes = 0;
	if (REAL(nvmlDeviceGetHandleByUUID)(gpu->name, &device) != NVML_SUCCESS)
		return false;
	nvmlReturn_t result = HAVE(nvmlDeviceGetComputeRunningProcesses_v3)
		? REAL(nvmlDeviceGetComputeRunningProcesses_v3)(device, &count, listed)
		: REAL(nvmlDeviceGetComputeRunningProcesses_v2)(device, &count, listed);
	for (unsigned i = 0; result == NVML_SUCCESS && i < count; i++) {
		if (listed[i].pid != pid || listed[i].memory_bytes == UINT64_MAX)
			continue;
		named = true;
		*bytes += listed[i].memory_bytes;
	}
	return named;
}

/* What is counted now, and not in the middle of a pool's growth, which the driver holds before it is charged. */
static uint64_t counted_whole(struct state *state, int gpu)
{
	pools_lock(state);
	uint64_t bytes = tenant_own_used(state, gpu);
	pools_unlock(state);
	return bytes;
}

/* Modules make it more than the contexts alone, so that the least is kept. Where contexts came or went meanwhile the
 * figure is of another number of them. */
static void learn(struct state *state, int gpu, uint64_t beyond, unsigned ended_before)
{
	unsigned contexts = atomic_load(&state->contexts[gpu]);
	if (contexts > 0 && !atomic_load(&state->has_managed) && atomic_load(&state->contexts_begun) == ended_before)
		tenant_learn_context(state, gpu, beyond / contexts);
}

/* Between what is counted before and after NVML was asked memory may have come or gone. The larger of
 * the two leaves the least for the context: rather a second too little than memory counted twice. */
void settle_nvml(struct state *state, const struct quota *quota)
{
	int64_t now = vgpu_coarse_ns();
	if (now < state->nvml_again_ns || !uses_cuda(state))
		return;
	bool named_somewhere = false;
	if (vgpu_pid_namespace() == INITIAL_PID_NAMESPACE && start(state)) {
		for (int i = 0; i < quota->gpu_count; i++) {
			int gpu = quota->gpus[i].region;
			if (gpu < 0)
				continue;
			unsigned ended = atomic_load(&state->contexts_ended);
			uint64_t bytes, before = tenant_own_used(state, gpu);
			bool named = bytes_by_nvml(&quota->gpus[i], &bytes);
			uint64_t after = counted_whole(state, gpu), counted = before > after ? before : after;
			uint64_t beyond = bytes > counted ? bytes - counted : 0;
			named_somewhere |= named;
			if (named && before == after)
				learn(state, gpu, beyond, ended);
			/* What lies on the GPU of managed memory that does not count cannot be told from the rest. */
			if (named && quota->managed_oversubscribed && atomic_load(&state->has_managed))
				continue;
			tenant_set_context(state, gpu, named ? beyond + atomic_load(&state->context_pending[gpu])
			                                     : atomic_load(&state->context_charged[gpu]));
		}
	}
	if (!named_somewhere)
		state->nvml_again_ns = now + SELDOM_NS;
}

void tenant_learn_now(struct state *state, const struct quota *quota)
{
	unsigned with_contexts = 0;
	for (int gpu = 0; gpu < QUOTA_GPUS; gpu++)
		with_contexts |= atomic_load(&state->contexts[gpu]) > 0 ? 1u << gpu : 0;
	if (!(with_contexts & ~atomic_fetch_or(&state->learned, with_contexts)) || atomic_exchange(&state->settling, true))
		return;
	state->nvml_again_ns = 0;
	settle_nvml(state, quota);
	atomic_store(&state->settling, false);
}
