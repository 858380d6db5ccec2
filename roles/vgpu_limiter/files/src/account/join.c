/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Open the tenant's region, take a slot for this process, and find its GPUs.
 */
#include "account/join.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "account/dead.h"
#include "account/region_lock.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/log.h"
#include "base/shared_file.h"

/* A process owns a slot while it holds the lock of the slot's byte. The slot's content is written under the region's
 * lock. */
static bool take_slot(struct tenant *tenant, int descriptor)
{
	struct slot *slots = tenant->region->slots;
	for (int pass = 0; pass < 2; pass++) {
		for (int i = 0; i < REGION_SLOTS; i++) {
			/* Check dead processes' slots last, because most slots marked as used belong to living
			 * processes. */
			if (pass == 0 && atomic_load(&slots[i].state) == SLOT_USED)
				continue;
			if (!vgpu_take_byte(descriptor, LOCK_SLOTS + i))
				continue;
			tenant->slot = i;
			tenant->nonce = (atomic_load(&slots[i].nonce) + 1) & NONCE_MASK;
			atomic_store(&slots[i].nonce, tenant->nonce);
			return true;
		}
	}
	return false;
}

static void fill_slot(struct tenant *tenant)
{
	struct region *region = tenant->region;
	struct slot *slot = &region->slots[tenant->slot];
	int64_t started_ns = ns_of_clock(CLOCK_BOOTTIME);
	uint64_t pid_namespace = vgpu_pid_namespace();
	region_lock(tenant);
	tenant_clear_slot(region, slot);
	slot->pid = getpid();
	slot->pid_namespace = pid_namespace;
	slot->started_ns = started_ns;
	atomic_store(&slot->contexts_changed_ns, 0);
	memset(slot->name, 0, sizeof slot->name);
	strncpy(slot->name, program_invocation_short_name ? program_invocation_short_name : "", sizeof slot->name - 1);
	if (atomic_load(&region->slot_limit) <= (uint32_t)tenant->slot)
		atomic_store(&region->slot_limit, (uint32_t)tenant->slot + 1);
	atomic_store(&slot->state, SLOT_USED);
	region_unlock(tenant);
}

/* --- opening --- */

/* Without a common count, each process would get the whole quota, and the tenant would not be limited. */
#define REFUSED "this process cannot be counted, so its allocations on GPUs with a quota are refused"

/* One of several processes that find a new file writes the header, and the others wait. */
static bool has_head(struct region *region, int descriptor)
{
	if (atomic_load(&region->magic) == 0 && vgpu_wait_for_byte(descriptor, LOCK_INIT)) {
		if (atomic_load(&region->magic) == 0) {
			region->version = REGION_VERSION;
			region->size = sizeof *region;
			atomic_store(&region->magic, REGION_MAGIC);
		}
		vgpu_leave_byte(descriptor, LOCK_INIT);
	}
	return atomic_load(&region->magic) == REGION_MAGIC && region->version == REGION_VERSION
	    && region->size == sizeof *region;
}

static bool open_shared_region(struct tenant *tenant, const struct quota *quota)
{
	char path[512];
	int descriptor;
	memcpy(tenant->name, quota->counted_as, sizeof tenant->name);
	if (!vgpu_path(path, sizeof path, "/run/openfleet-gpu/vgpu/tenants/%s/region.%d", tenant->name, REGION_VERSION))
		return false;
	struct region *region = vgpu_open_shared(path, sizeof *region, &descriptor);
	if (!region) {
		vgpu_log(LOG_ERR, "cannot open %s (%m): " REFUSED, path);
		return false;
	}
	const char *wrong = NULL;
	struct stat status = { 0 };
	file_status(descriptor, "", &status);
	tenant->device = status.st_dev;
	tenant->inode = status.st_ino;
	tenant->region = region;
	if (!has_head(region, descriptor))
		wrong = "it is not a region of this version. Remove it when no process of the tenant runs";
	else if (!take_slot(tenant, descriptor))
		wrong = "all 1024 slots for processes are used";
	vgpu_close(descriptor);
	if (!wrong)
		return true;
	vgpu_log(LOG_ERR, "%s: %s: " REFUSED, path, wrong);
	munmap(region, sizeof *region);
	tenant->region = NULL;
	return false;
}

static bool join(struct tenant *tenant, const struct quota *quota)
{
	if (tenant->region)
		return true;
	if (!open_shared_region(tenant, quota)) {
		void *region = mmap(NULL, sizeof(struct region), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (region == MAP_FAILED || madvise(region, sizeof(struct region), MADV_DONTFORK) != 0)
			return false;
		tenant->uncounted = true;
		tenant->slot = 0;
		tenant->region = region;
	}
	fill_slot(tenant);
	return true;
}

static int find_gpu(struct region *region, const CUuuid *uuid)
{
	int place = -1;
	for (int i = 0; i < REGION_GPUS; i++) {
		struct region_gpu *gpu = &region->gpus[i];
		if (atomic_load(&gpu->taken)) {
			if (memcmp(gpu->uuid, uuid, sizeof *uuid) == 0)
				return i;
		} else if (place < 0) {
			place = i;
		}
	}
	if (place >= 0) {
		memcpy(region->gpus[place].uuid, uuid, sizeof *uuid);
		atomic_store(&region->gpus[place].taken, 1);
	}
	return place;
}

/* Return whether this is the tenant's only process. Requires the lock. Call only in a process without an earlier quota,
 * which has no memory. */
static bool is_alone(struct tenant *tenant)
{
	tenant_strike_off_all(tenant);
	for (uint32_t i = 0; i < REGION_SLOTS; i++)
		if (i != (uint32_t)tenant->slot && atomic_load(&tenant->region->slots[i].state) != SLOT_FREE)
			return false;
	return true;
}

/* Free the entries of GPUs without a living process, because a tenant may use many GPUs over time. */
static void clear_gpus(struct region *region)
{
	for (int i = 0; i < REGION_GPUS; i++) {
		struct region_gpu *gpu = &region->gpus[i];
		atomic_store(&gpu->taken, 0);
		atomic_store(&gpu->total, 0);
		atomic_store(&gpu->peak, 0);
		atomic_store(&gpu->refused, 0);
		atomic_store(&gpu->context_kib, 0);
	}
}

static bool find_gpus(struct region *region, struct quota *quota)
{
	bool all = true;
	for (int i = 0; i < quota->gpu_count; i++) {
		quota->gpus[i].region = find_gpu(region, &quota->gpus[i].uuid);
		all = all && quota->gpus[i].region >= 0;
	}
	return all;
}

void tenant_join(struct tenant *tenant, struct quota *quota, bool first)
{
	if (!join(tenant, quota))
		return;
	region_lock(tenant);
	if (!find_gpus(tenant->region, quota) && first && is_alone(tenant)) {
		clear_gpus(tenant->region);
		find_gpus(tenant->region, quota);
	}
	region_unlock(tenant);
	for (int i = 0; i < quota->gpu_count; i++)
		if (quota->gpus[i].region < 0)
			vgpu_log(LOG_ERR, "the region of %s has %d other GPUs, so allocations on %s are refused. End all programs of the tenant "
			         "to free its GPU entries", quota->tenant, REGION_GPUS, quota->gpus[i].name);
}
