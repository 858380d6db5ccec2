/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Read tenants, quotas and regions for vgpu-top.
 */
#include "top/read.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/files.h"
#include "formats/region.h"
#include "top/input.h"
#include "top/processes.h"
#include "top/seats.h"

static void set_problem(struct top_tenant *tenant, const char *what, const char *path)
{
	if (!tenant->problem[0])
		snprintf(tenant->problem, sizeof tenant->problem, "%s: %s", path, what);
}

/* --- quota --- */

/* Ignore unknown keys in quota files. The library logs them. */
static void pass_over(const char *tenant, const char *key)
{
	(void)tenant;
	(void)key;
}

static void read_quota(struct top_tenant *tenant, const char *root)
{
	char path[512], text[16384];
	int line = 0;
	snprintf(path, sizeof path, "%s" ETC "/%s/quota", root, tenant->name);
	ssize_t size = read_file(path, text, sizeof text - 1, NULL);
	if (size < 0) {
		set_problem(tenant, errno == ENOENT ? "is missing, and running processes keep the last quota" : strerror(errno), path);
		return;
	}
	text[size] = '\0';
	const char *error = quota_parse(&tenant->quota, text, tenant->name, &line, pass_over);
	if (error) {
		snprintf(tenant->problem, sizeof tenant->problem, "%s, line %d: %s", path, line, error);
		memset(&tenant->quota, 0, sizeof tenant->quota);
	}
	tenant->has_quota = !error;
}

/* --- region --- */

static int place_of(const struct region *region, const CUuuid *uuid)
{
	for (int i = 0; i < REGION_GPUS; i++)
		if (atomic_load(&region->gpus[i].taken) && memcmp(region->gpus[i].uuid, uuid->bytes, sizeof uuid->bytes) == 0)
			return i;
	return -1;
}

static void read_slot(struct top_tenant *tenant, const struct slot *slot, const int place[QUOTA_GPUS])
{
	struct top_process *process = &tenant->processes[tenant->process_count++];
	memset(process, 0, sizeof *process);
	process->own_pid = slot->pid;
	for (int i = 0; i < TOP_NAME - 1 && slot->name[i]; i++)
		process->name[i] = isprint((unsigned char)slot->name[i]) ? slot->name[i] : '?';
	for (int i = 0; i < tenant->quota.gpu_count; i++) {
		if (place[i] < 0)
			continue;
		process->used[i] = atomic_load(&slot->used[place[i]]) + atomic_load(&slot->context[place[i]]);
		tenant->gpus[i].used += process->used[i];
	}
}

static void read_region(struct top_tenant *tenant, const char *root)
{
	char path[512];
	int descriptor = -1, place[QUOTA_GPUS];
	struct stat status = { 0 };
	struct region *region = need(calloc(1, sizeof *region));
	snprintf(path, sizeof path, "%s" RUN "/tenants/%s/region.1", root, top_key_of(tenant));
	ssize_t size = read_file(path, region, sizeof *region, &descriptor);
	if (size < 0)
		set_problem(tenant, errno == ENOENT ? "is missing. Run systemd-tmpfiles --create" : strerror(errno), path);
	else if ((size_t)size == sizeof *region && atomic_load(&region->magic) != 0
		 && (atomic_load(&region->magic) != REGION_MAGIC || region->version != REGION_VERSION))
		set_problem(tenant, "has a format that this vgpu-top does not support", path);
	else if ((size_t)size == sizeof *region && file_status(descriptor, "", &status) == 0) {
		for (int i = 0; i < tenant->quota.gpu_count; i++) {
			place[i] = place_of(region, &tenant->quota.gpus[i].uuid);
			if (place[i] >= 0) {
				tenant->gpus[i].peak = atomic_load(&region->gpus[place[i]].peak);
				tenant->gpus[i].refused = atomic_load(&region->gpus[place[i]].refused);
			}
		}
		tenant->processes = need(calloc(REGION_SLOTS, sizeof *tenant->processes));
		for (int i = 0; i < REGION_SLOTS; i++)
			if (atomic_load(&region->slots[i].state) == SLOT_USED && is_locked(descriptor, LOCK_SLOTS + i))
				read_slot(tenant, &region->slots[i], place);
		find_pids(tenant, status.st_ino);
	}
	if (descriptor >= 0)
		close(descriptor);
	free(region);
}

static void compare(struct top *now, const struct top *before)
{
	for (int i = 0; i < now->tenant_count; i++)
		for (int j = 0; before && j < before->tenant_count; j++) {
			struct top_tenant *tenant = &now->tenants[i];
			const struct top_tenant *old = &before->tenants[j];
			if (strcmp(tenant->name, old->name) != 0)
				continue;
			for (int k = 0; k < tenant->quota.gpu_count; k++)
				for (int l = 0; l < old->quota.gpu_count; l++) {
					struct top_gpu *shown = &tenant->gpus[k];
					const struct top_gpu *then = &old->gpus[l];
					if (strcmp(tenant->quota.gpus[k].name, old->quota.gpus[l].name) != 0 || !shown->seated)
						continue;
					if (shown->as_of_ns == then->as_of_ns)
						/* The agent has not written since the earlier sample, so keep its
						 * percentage. */
						shown->actual_percent = then->actual_percent;
					else if (shown->busy_ns >= then->busy_ns && shown->as_of_ns > then->as_of_ns)
						shown->actual_percent = 100.0 * (double)(shown->busy_ns - then->busy_ns)
							/ (double)(shown->as_of_ns - then->as_of_ns);
				}
		}
}

/* --- all tenants --- */

static bool known(const struct top *top, const char *name)
{
	for (int i = 0; i < top->tenant_count; i++)
		if (strcmp(top->tenants[i].name, name) == 0)
			return true;
	return false;
}

/* Return whether the name is an alias of a tenant, which is shown under its current name. */
static bool is_alias(const char *root, const char *name)
{
	char path[512];
	snprintf(path, sizeof path, "%s" ETC "/%s/alias_of", root, name);
	return access(path, F_OK) == 0;
}

static void list(struct top *top, const char *root, const char *folder)
{
	char path[512];
	struct dirent *entry;
	snprintf(path, sizeof path, "%s%s", root, folder);
	DIR *directory = opendir(path);
	while (directory && (entry = readdir(directory)))
		if (quota_is_name(entry->d_name) && entry->d_type != DT_REG && top->tenant_count < TOP_TENANTS && !known(top, entry->d_name)
		    && !is_alias(root, entry->d_name))
			strcpy(top->tenants[top->tenant_count++].name, entry->d_name);
	if (directory)
		closedir(directory);
}

/* Remove a renamed tenant's folders under its old name, which are no separate tenants. */
static void drop_keys(struct top *top)
{
	int kept = 0;
	for (int i = 0; i < top->tenant_count; i++) {
		bool is_key = false;
		for (int j = 0; j < top->tenant_count && !top->tenants[i].has_quota; j++)
			is_key = is_key || (top->tenants[j].has_quota && strcmp(top->tenants[j].quota.counted_as, top->tenants[i].name) == 0);
		if (!is_key && kept++ != i)
			top->tenants[kept - 1] = top->tenants[i];
	}
	top->tenant_count = kept;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct top_tenant *)a)->name, ((const struct top_tenant *)b)->name);
}

struct top *top_read(const char *root, const struct top *before)
{
	struct seats seats = { 0 };
	struct top *top = need(calloc(1, sizeof *top));
	top->tenants = need(calloc(TOP_TENANTS, sizeof *top->tenants));
	list(top, root, ETC);
	list(top, root, RUN "/tenants");
	qsort(top->tenants, (size_t)top->tenant_count, sizeof *top->tenants, by_name);
	top->time_ns = now_ns();
	read_seats(&seats, root, top->time_ns);
	top->agent_ns = seats.time_ns;
	for (int i = 0; i < top->tenant_count; i++)
		read_quota(&top->tenants[i], root);
	drop_keys(top);
	for (int i = 0; i < top->tenant_count; i++) {
		struct top_tenant *tenant = &top->tenants[i];
		for (int gpu = 0; gpu < tenant->quota.gpu_count; gpu++) {
			tenant->gpus[gpu].actual_percent = -1;
			read_turnstile(tenant, gpu, root, &seats, top->time_ns);
		}
		read_region(tenant, root);
	}
	free(seats.list);
	compare(top, before);
	return top;
}

void top_free(struct top *top)
{
	for (int i = 0; top && i < top->tenant_count; i++)
		free(top->tenants[i].processes);
	if (top)
		free(top->tenants);
	free(top);
}
