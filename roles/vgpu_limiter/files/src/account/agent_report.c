/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Read the agent's report and charge the reported memory.
 */
#include "account/agent_report.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "account/context_events.h"
#include "account/context_sums.h"
#include "base/clock.h"
#include "base/files.h"
#include "formats/nvml_report.h"

enum { TRIES = 4 };
#define SILENT_NS (5 * NS_PER_SECOND)
#define WAIT_NS (2500 * NS_PER_MS)
#define POLL_NS (10 * NS_PER_MS)

/* --- reading --- */

static bool read_at_start(int descriptor, void *to, size_t size, size_t least)
{
	long length;
	do
		length = syscall(SYS_pread64, descriptor, to, size, (off_t)0);
	while (length < 0 && errno == EINTR);
	return length >= 0 && (size_t)length >= least;
}

static bool read_whole(int descriptor, struct nvml_report *report)
{
	const size_t head = offsetof(struct nvml_report, row);
	struct { uint64_t magic, sequence; } after;
	for (int i = 0; i < TRIES; i++) {
		if (!read_at_start(descriptor, report, sizeof *report, head) || report->magic != NVML_REPORT_MAGIC)
			return false;
		if (report->sequence % 2 == 0 && read_at_start(descriptor, &after, sizeof after, sizeof after)
		    && after.sequence == report->sequence)
			return report->gpus <= REGION_GPUS && report->rows <= REGION_SLOTS;
	}
	return false;
}

/* Return false if the report is missing or old. */
static bool read_report(const struct tenant *tenant, struct nvml_report *report)
{
	char path[512];
	if (!tenant->region || tenant->uncounted
	    || !vgpu_path(path, sizeof path, "/run/openfleet-gpu/vgpu/agent/%s/nvml.%d", tenant->name, REGION_VERSION))
		return false;
	int descriptor = vgpu_openat(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW, 0);
	if (descriptor < 0)
		return false;
	bool whole = read_whole(descriptor, report);
	vgpu_close(descriptor);
	int64_t age_ns = kernel_ns() - report->written_ns;
	return whole && age_ns >= 0 && age_ns < SILENT_NS;
}

/* --- charging --- */

static int column_of(const struct nvml_report *report, const struct quota_gpu *gpu)
{
	for (uint32_t i = 0; i < report->gpus; i++)
		if (memcmp(report->uuid[i], &gpu->uuid, sizeof gpu->uuid) == 0)
			return (int)i;
	return -1;
}

/* If a context changed after the report, the report is for another number of contexts. */
static bool is_of_these_contexts(const struct tenant *tenant, uint32_t slot, const struct nvml_report *report)
{
	return slot < REGION_SLOTS && atomic_load(&tenant->region->slots[slot].contexts_changed_ns) < report->asked_ns;
}

static void settle_own(struct account *account, const struct quota *quota, int gpu, uint64_t beyond)
{
	bool has_managed = atomic_load(&account->has_managed);
	unsigned contexts = atomic_load(&account->contexts[gpu]);
	if (beyond == UINT64_MAX) {
		tenant_set_context(&account->tenant, gpu, atomic_load(&account->context_charged[gpu]));
		return;
	}
	if (contexts > 0 && !has_managed)
		tenant_learn_context(&account->tenant, gpu, beyond / contexts);
	/* Managed memory may be exempt from the quota, but NVML's value for the GPU includes it. */
	if (!quota->managed_oversubscribed || !has_managed)
		tenant_set_context(&account->tenant, gpu, beyond + atomic_load(&account->context_pending[gpu]));
}

static void charge_on(struct account *account, const struct quota *quota, const struct nvml_report *report, int gpu, int column)
{
	struct tenant *tenant = &account->tenant;
	for (uint32_t i = 0; i < report->rows; i++) {
		const struct nvml_report_row *row = &report->row[i];
		bool own = row->slot == (uint32_t)tenant->slot;
		if (!is_of_these_contexts(tenant, row->slot, report))
			continue;
		if (own && row->nonce == tenant->nonce && context_changes_are_over(account))
			settle_own(account, quota, gpu, row->beyond[column]);
		else if (!own && !quota->managed_oversubscribed)
			tenant_raise_context(tenant, row->slot, row->nonce, gpu, row->steady[column]);
	}
	if (report->others_slot != NVML_REPORT_NO_SLOT && !quota->managed_oversubscribed)
		tenant_set_others(tenant, report->others_slot, report->others_nonce, gpu, report->others[column]);
}

static void charge_all(struct account *account, const struct quota *quota, const struct nvml_report *report)
{
	for (int i = 0; i < quota->gpu_count; i++) {
		int gpu = quota->gpus[i].region, column = column_of(report, &quota->gpus[i]);
		if (gpu >= 0 && column >= 0)
			charge_on(account, quota, report, gpu, column);
	}
}

static struct nvml_report *buffer(void)
{
	static struct nvml_report report;	/* account->settling lets only one thread in */
	return &report;
}

bool agent_report_settle(struct account *account, const struct quota *quota)
{
	struct nvml_report *report = buffer();
	if (!read_report(&account->tenant, report))
		return false;
	charge_all(account, quota, report);
	return true;
}

void agent_report_first(struct account *account, const struct quota *quota)
{
	if (!account->tenant.region || atomic_exchange(&account->settling, true))
		return;
	agent_report_settle(account, quota);
	atomic_store(&account->settling, false);
}

bool agent_report_learn(struct account *account, const struct quota *quota)
{
	struct nvml_report *report = buffer();
	const struct timespec poll = { .tv_nsec = POLL_NS };
	int64_t began = kernel_ns();
	/* Another thread is reading the report. Use its result at the next check. */
	if (atomic_exchange(&account->settling, true))
		return true;
	bool speaks = read_report(&account->tenant, report);
	unsigned unknown = context_places_to_learn(account);
	while (unknown && speaks && report->asked_ns <= began && kernel_ns() - began < WAIT_NS) {
		syscall(SYS_nanosleep, &poll, NULL);
		speaks = read_report(&account->tenant, report);
	}
	if (unknown && speaks) {
		charge_all(account, quota, report);
		/* If a complete report omits these contexts, waiting longer does not help. */
		atomic_fetch_or(&account->learned, report->asked_ns > began ? unknown : 0);
	}
	atomic_store(&account->settling, false);
	return speaks;
}
