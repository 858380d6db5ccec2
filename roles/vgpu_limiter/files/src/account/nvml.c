/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Charge the memory that NVML reports for this process.
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

enum { LISTED = 1024, TRIES = 4 };	/* maximum number of NVML queries while memory changes */
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

/* Read the memory that NVML reports for this process on the GPU, added over MIG instances. Return false if NVML does
 * not list this process. */
static bool bytes_by_nvml(const struct quota_gpu *gpu, uint64_t *bytes)
{
	static nvmlProcessInfo_t listed[LISTED];	/* account->settling lets only one thread in */
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

/* Read the current count, but not while a pool grows or rows are allocated, when the driver may have allocated memory
 * that is not charged yet. */
static uint64_t counted_whole(struct account *account, int gpu)
{
	recursive_lock(&account->pools);
	uint64_t bytes = tenant_own_used(&account->tenant, gpu);
	pools_leave(account);
	return bytes;
}

/* Loaded modules add to the reported value, so keep the lowest value. If contexts changed during the query, the value
 * is for another number of contexts. */
static void learn(struct account *account, int gpu, uint64_t beyond, unsigned ended_before)
{
	unsigned contexts = atomic_load(&account->contexts[gpu]);
	if (contexts > 0 && !atomic_load(&account->has_managed) && atomic_load(&account->contexts_begun) == ended_before)
		tenant_learn_context(&account->tenant, gpu, beyond / contexts);
}

/* Memory of this process on a GPU that NVML reports and that is not in the accounting. */
struct answer {
	bool named;	/* NVML lists the process */
	bool still;	/* no memory changed during the query */
	uint64_t beyond;
};

/* Memory may change during the query. Subtract the larger of the two counts, so that no memory counts twice. */
static struct answer ask(struct account *account, const struct quota_gpu *gpu)
{
	struct tenant *tenant = &account->tenant;
	uint32_t moves = atomic_load(&tenant->moves);
	uint64_t bytes, before = tenant_own_used(tenant, gpu->region);
	bool named = bytes_by_nvml(gpu, &bytes);
	uint64_t after = counted_whole(account, gpu->region), counted = before > after ? before : after;
	return (struct answer){ named, atomic_load(&tenant->moves) == moves, bytes > counted ? bytes - counted : 0 };
}

/* Memory that is allocated and freed during the query may be in NVML's value but in neither count. Query several times
 * and use the lowest value, which does not include such memory. */
static struct answer ask_until_still(struct account *account, const struct quota_gpu *gpu)
{
	struct answer least = ask(account, gpu);
	for (int i = 1; i < TRIES && least.named && least.beyond && !least.still; i++) {
		struct answer next = ask(account, gpu);
		if (next.still || next.beyond < least.beyond)
			least = next;
	}
	return least;
}

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
			struct answer answer = ask_until_still(account, &quota->gpus[i]);
			named_somewhere |= answer.named;
			if (answer.named && answer.still)
				learn(account, gpu, answer.beyond, ended);
			/* Managed memory may be exempt from the quota, but NVML's value for the GPU includes it. */
			if (answer.named && quota->managed_oversubscribed && atomic_load(&account->has_managed))
				continue;
			tenant_set_context(&account->tenant, gpu, answer.named ? answer.beyond + atomic_load(&account->context_pending[gpu])
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
