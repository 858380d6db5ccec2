/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Reading for vgpu-top: quotas, regions, turnstiles, and who of the processes lives.
 */
#include "top.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "quota.h"

#define ETC "/etc/openfleet-gpu/vgpu"
#define RUN "/run/openfleet-gpu/vgpu"

static void *need(void *memory)
{
	if (!memory) {
		fprintf(stderr, "vgpu-top: out of memory\n");
		exit(1);
	}
	return memory;
}

/* What the parser of quota files has to say about unknown keys is for the library's log. */
void vgpu_log(int level, const char *format, ...)
{
	(void)level;
	(void)format;
}

/* The beginning of a file; -1: errno says why. It may be read by others at the same time, so it is copied. */
static ssize_t read_file(const char *path, void *to, size_t room, int *descriptor)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	if (fd < 0)
		return -1;
	size_t size = 0;
	ssize_t more;
	while (size < room && (more = read(fd, (char *)to + size, room - size)) > 0)
		size += (size_t)more;
	if (descriptor)
		*descriptor = fd;
	else
		close(fd);
	return (ssize_t)size;
}

static void set_problem(struct top_tenant *tenant, const char *what, const char *path)
{
	if (!tenant->problem[0])
		snprintf(tenant->problem, sizeof tenant->problem, "%s: %s", path, what);
}

/* --- quota --- */

static void read_quota(struct top_tenant *tenant, const char *root)
{
	char path[512], text[16384];
	int line = 0;
	snprintf(path, sizeof path, "%s" ETC "/%s/quota", root, tenant->name);
	ssize_t size = read_file(path, text, sizeof text - 1, NULL);
	if (size < 0) {
		set_problem(tenant, errno == ENOENT ? "is not there: what still runs keeps its last quota" : strerror(errno), path);
		return;
	}
	text[size] = '\0';
	const char *error = quota_parse(&tenant->quota, text, tenant->name, &line);
	if (error) {
		snprintf(tenant->problem, sizeof tenant->problem, "%s, line %d: %s", path, line, error);
		memset(&tenant->quota, 0, sizeof tenant->quota);
	}
	tenant->has_quota = !error;
}

/* The name under which its processes are counted. */
static const char *key_of(const struct top_tenant *tenant)
{
	return tenant->has_quota ? tenant->quota.counted_as : tenant->name;
}

/* --- processes --- */

static bool is_locked(int descriptor, int64_t offset)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = offset, .l_len = 1 };
	return fcntl(descriptor, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

static FILE *open_in(int folder, const char *name)
{
	int fd = openat(folder, name, O_RDONLY | O_CLOEXEC);
	FILE *file = fd < 0 ? NULL : fdopen(fd, "r");
	if (fd >= 0 && !file)
		close(fd);
	return file;
}

/* Whether a process of this host has mapped the region, and what it calls itself in its own namespace. Both are read
 * through one descriptor of its folder: the pid may be another process's in between. */
static bool maps_region(int64_t pid, ino_t inode, int64_t *own_pid)
{
	char path[64], line[8192];
	bool found = false;
	snprintf(path, sizeof path, "/proc/%lld", (long long)pid);
	int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (folder < 0)
		return false;
	FILE *maps = open_in(folder, "maps");
	while (maps && !found && fgets(line, sizeof line, maps)) {
		unsigned long long number;
		found = strstr(line, "region.1") && sscanf(line, "%*s %*s %*s %*s %llu", &number) == 1 && number == inode;
	}
	if (maps)
		fclose(maps);
	FILE *status = found ? open_in(folder, "status") : NULL;
	found = status != NULL;
	*own_pid = pid;
	while (status && fgets(line, sizeof line, status)) {
		char *last = strrchr(line, '\t');
		if (strncmp(line, "NSpid:", 6) == 0 && last)
			*own_pid = atoll(last);
	}
	if (status)
		fclose(status);
	close(folder);
	return found;
}

static bool all_found(const struct top_tenant *tenant)
{
	for (int i = 0; i < tenant->process_count; i++)
		if (!tenant->processes[i].pid)
			return false;
	return true;
}

static void found_pid(struct top_tenant *tenant, int64_t pid, int64_t own_pid)
{
	for (int i = 0; i < tenant->process_count; i++)
		if (!tenant->processes[i].pid && tenant->processes[i].own_pid == own_pid) {
			tenant->processes[i].pid = pid;
			return;
		}
}

/* A process in a container knows itself by another number than the host does. Most do not: they are
 * asked first. For the rest all processes are looked through, as far as this user may. */
static void find_pids(struct top_tenant *tenant, ino_t inode)
{
	int64_t own;
	for (int i = 0; i < tenant->process_count; i++) {
		struct top_process *process = &tenant->processes[i];
		if (process->own_pid > 0 && maps_region(process->own_pid, inode, &own) && own == process->own_pid)
			process->pid = own;
	}
	DIR *proc = all_found(tenant) ? NULL : opendir("/proc");
	struct dirent *entry;
	while (proc && !all_found(tenant) && (entry = readdir(proc))) {
		int64_t pid = isdigit((unsigned char)entry->d_name[0]) ? atoll(entry->d_name) : 0;
		if (pid && maps_region(pid, inode, &own) && own != pid)
			found_pid(tenant, pid, own);
	}
	if (proc)
		closedir(proc);
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
	snprintf(path, sizeof path, "%s" RUN "/tenants/%s/region.1", root, key_of(tenant));
	ssize_t size = read_file(path, region, sizeof *region, &descriptor);
	if (size < 0)
		set_problem(tenant, errno == ENOENT ? "is not there; systemd-tmpfiles --create makes it" : strerror(errno), path);
	else if ((size_t)size == sizeof *region && atomic_load(&region->magic) != 0
		 && (atomic_load(&region->magic) != REGION_MAGIC || region->version != REGION_VERSION))
		set_problem(tenant, "has a layout that this vgpu-top does not know", path);
	else if ((size_t)size == sizeof *region && fstat(descriptor, &status) == 0) {
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

/* --- turnstiles --- */

/* What the agent shows of all tenants, which it writes once a second. agent_client.py of the collection's
 * techniques/vgpu says the layout. */
enum { SHOWN_MOST = 1 << 24 };
#define SHOWN_FILE RUN "/seats.1"
#define SHOWN_MAGIC "OFVSEAT1"
#define SHOWN_STALE_NS (5 * NS_PER_SECOND)

struct shown_header {
	char magic[8];
	int64_t time_ns;
	uint64_t count;
};

struct shown_seat {
	char gpu[48];
	uint32_t number, immutable;
	union {
		struct seat seat;
		char bytes[256];
	};
};

_Static_assert(sizeof(struct shown_header) == 24 && sizeof(struct shown_seat) == 312, "as the agent writes them");

struct seats {
	int64_t time_ns;
	uint64_t count;
	struct shown_seat *list;
};

/* None where no agent runs. A file that is written at the moment may have seats of two looks. */
static void read_seats(struct seats *seats, const char *root, int64_t now_ns)
{
	char path[512];
	struct shown_header header;
	struct stat status;
	int descriptor = -1;
	snprintf(path, sizeof path, "%s" SHOWN_FILE, root);
	if (read_file(path, &header, sizeof header, &descriptor) == (ssize_t)sizeof header && fstat(descriptor, &status) == 0
	    && memcmp(header.magic, SHOWN_MAGIC, sizeof header.magic) == 0 && header.time_ns <= now_ns
	    && now_ns - header.time_ns <= SHOWN_STALE_NS && status.st_size <= SHOWN_MOST
	    && header.count == ((uint64_t)status.st_size - sizeof header) / sizeof *seats->list) {
		size_t size = header.count * sizeof *seats->list;
		seats->list = need(malloc(size + 1));
		if (pread(descriptor, seats->list, size, sizeof header) == (ssize_t)size) {
			seats->count = header.count;
			seats->time_ns = header.time_ns;
		}
	}
	if (descriptor >= 0)
		close(descriptor);
}

static const struct seat *find_seat(const struct seats *seats, const char *gpu, int number)
{
	for (uint64_t i = 0; i < seats->count; i++)
		if ((int)seats->list[i].number == number && strncmp(seats->list[i].gpu, gpu, sizeof seats->list[i].gpu) == 0)
			return &seats->list[i].seat;
	return NULL;
}

static void read_turnstile(struct top_tenant *tenant, int gpu, const char *root, const struct seats *seats, int64_t now_ns)
{
	char path[512];
	const struct quota_gpu *quota = &tenant->quota.gpus[gpu];
	if (quota->seat < 0 || quota->seat >= TURNSTILE_SEATS)
		return;
	struct turnstile_file *t = need(calloc(1, sizeof *t));
	const struct seat *seat = find_seat(seats, quota->name, quota->seat);
	int64_t as_of_ns = seat ? seats->time_ns : now_ns;
	snprintf(path, sizeof path, "%s" RUN "/gpus/%s.1", root, quota->name);
	if (!seat && read_file(path, t, sizeof *t, NULL) == (ssize_t)sizeof *t
	    && atomic_load(&t->magic) == TURNSTILE_MAGIC && atomic_load(&t->version) == TURNSTILE_VERSION)
		seat = &t->seats[quota->seat];
	if (seat) {
		struct top_gpu *shown = &tenant->gpus[gpu];
		shown->seated = strncmp(seat->tenant, key_of(tenant), sizeof seat->tenant) == 0;
		shown->as_of_ns = as_of_ns;
		shown->busy_ns = atomic_load(&seat->used_ns);
		shown->held_back_ns = atomic_load(&seat->throttled_ns);
	}
	free(t);
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
						/* Both looks are at what the agent wrote once. */
						shown->had_percent = then->had_percent;
					else if (shown->busy_ns >= then->busy_ns && shown->as_of_ns > then->as_of_ns)
						shown->had_percent = 100.0 * (double)(shown->busy_ns - then->busy_ns)
							/ (double)(shown->as_of_ns - then->as_of_ns);
				}
		}
}

/* --- all of it --- */

static bool known(const struct top *top, const char *name)
{
	for (int i = 0; i < top->tenant_count; i++)
		if (strcmp(top->tenants[i].name, name) == 0)
			return true;
	return false;
}

static bool is_name(const char *name)
{
	return *name && *name != '.' && strlen(name) < TENANT_NAME
		&& !name[strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")];
}

/* Another name of a tenant, which is shown under its own. */
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
		if (is_name(entry->d_name) && entry->d_type != DT_REG && top->tenant_count < TOP_TENANTS && !known(top, entry->d_name)
		    && !is_alias(root, entry->d_name))
			strcpy(top->tenants[top->tenant_count++].name, entry->d_name);
	if (directory)
		closedir(directory);
}

/* Folders that a renamed tenant left under its key are none of another tenant. */
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
	struct timespec now;
	struct seats seats = { 0 };
	struct top *top = need(calloc(1, sizeof *top));
	top->tenants = need(calloc(TOP_TENANTS, sizeof *top->tenants));
	list(top, root, ETC);
	list(top, root, RUN "/tenants");
	qsort(top->tenants, (size_t)top->tenant_count, sizeof *top->tenants, by_name);
	clock_gettime(CLOCK_MONOTONIC, &now);
	top->time_ns = now.tv_sec * NS_PER_SECOND + now.tv_nsec;
	read_seats(&seats, root, top->time_ns);
	top->agent_ns = seats.time_ns;
	for (int i = 0; i < top->tenant_count; i++)
		read_quota(&top->tenants[i], root);
	drop_keys(top);
	for (int i = 0; i < top->tenant_count; i++) {
		struct top_tenant *tenant = &top->tenants[i];
		for (int gpu = 0; gpu < tenant->quota.gpu_count; gpu++) {
			tenant->gpus[gpu].had_percent = -1;
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
