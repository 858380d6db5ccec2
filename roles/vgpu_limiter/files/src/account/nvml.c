/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * What NVML says of this process.
 */
#include "account/nvml.h"

#include <unistd.h>

#include "account/context_events.h"
#include "account/context_sums.h"
#include "account/pool_blocks.h"
#include "account/sums.h"
#include "base/clock.h"
#include "base/files.h"
#include "driver/reals.h"

enum { LISTED = 1024 };
#define SELDOM_NS (60 * NS_PER_SECOND)

static bool uses_cuda(const struct account *account)
{
	for (int device = 0; device < DEVICES; device++)
		if (atomic_load_explicit(&account->device_known[device], memory_order_relaxed))
			return true;
	return false;
}

static bool start(struct account *account)
{
	if (!account->nvml_started)
		account->nvml_started = vgpu_load_nvml() && HAVE(nvmlInit_v2) && REAL(nvmlInit_v2)() == NVML_SUCCESS;
	return account->nvml_started;
}

/* False: NVML does not name this process on the GPU. An entry for each MIG instance, so it is a sum. */
static bool bytes_by_nvml(const struct quota_gpu *gpu, uint64_t *bytes)
{
	static nvmlProcessInfo_t listed[LISTED];	/* account->settling keeps it to one thread */
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
static uint64_t counted_whole(struct account *account, int gpu)
{
	recursive_lock(&account->pools);
	uint64_t bytes = tenant_own_used(&account->tenant, gpu);
	pools_leave(account);
	return bytes;
}

/* Modules make it more than the contexts alone, so that the least is kept. Where contexts came or went meanwhile the
 * figure is of another number of them. */
static void learn(struct account *account, int gpu, uint64_t beyond, unsigned ended_before)
{
	unsigned contexts = atomic_load(&account->contexts[gpu]);
	if (contexts > 0 && !atomic_load(&account->has_managed) && atomic_load(&account->contexts_begun) == ended_before)
		tenant_learn_context(&account->tenant, gpu, beyond / contexts);
}

/* Between what is counted before and after NVML was asked memory may have come or gone. The larger of
 * the two leaves the least for the context: rather a second too little than memory counted twice. */
void nvml_settle(struct account *account, const struct quota *quota)
{
	int64_t now = coarse_ns();
	if (now < account->nvml_again_ns || !uses_cuda(account))
		return;
	bool named_somewhere = false;
	if (vgpu_pid_namespace() == INITIAL_PID_NAMESPACE && start(account)) {
		for (int i = 0; i < quota->gpu_count; i++) {
			int gpu = quota->gpus[i].region;
			if (gpu < 0)
				continue;
			unsigned ended = atomic_load(&account->contexts_ended);
			uint64_t bytes, before = tenant_own_used(&account->tenant, gpu);
			bool named = bytes_by_nvml(&quota->gpus[i], &bytes);
			uint64_t after = counted_whole(account, gpu), counted = before > after ? before : after;
			uint64_t beyond = bytes > counted ? bytes - counted : 0;
			named_somewhere |= named;
			if (named && before == after)
				learn(account, gpu, beyond, ended);
			/* What lies on the GPU of managed memory that does not count cannot be told from the rest. */
			if (named && quota->managed_oversubscribed && atomic_load(&account->has_managed))
				continue;
			tenant_set_context(&account->tenant, gpu, named ? beyond + atomic_load(&account->context_pending[gpu])
			                                                     : atomic_load(&account->context_charged[gpu]));
		}
	}
	if (!named_somewhere)
		account->nvml_again_ns = now + SELDOM_NS;
}

void nvml_learn_now(struct account *account, const struct quota *quota)
{
	unsigned unknown = context_places_to_learn(account);
	if (!(unknown & ~atomic_fetch_or(&account->learned, unknown)) || atomic_exchange(&account->settling, true))
		return;
	account->nvml_again_ns = 0;
	nvml_settle(account, quota);
	atomic_store(&account->settling, false);
}
