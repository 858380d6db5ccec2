/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Find processes in /proc.
 */
#include "top/processes.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "top/input.h"

bool is_locked(int descriptor, off_t offset)
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

/* Return the inode in a line of /proc/PID/maps (fifth field). */
static ino_t mapped_inode(const char *line)
{
	for (int word = 0; word < 4; word++) {
		line += strcspn(line, " ");
		line += strspn(line, " ");
	}
	return (ino_t)decimal(line);
}

/* Return whether a process of this host maps the region, and read its PID in its own namespace. Reads both through one
 * descriptor of the process's folder, because another process may get the PID in between. */
static bool maps_region(int64_t pid, ino_t inode, int64_t *own_pid)
{
	char path[64], line[8192];
	bool found = false;
	snprintf(path, sizeof path, "/proc/%lld", (long long)pid);
	int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (folder < 0)
		return false;
	FILE *maps = open_in(folder, "maps");
	while (maps && !found && fgets(line, sizeof line, maps))
		found = strstr(line, "region.1") && mapped_inode(line) == inode;
	if (maps)
		fclose(maps);
	FILE *status = found ? open_in(folder, "status") : NULL;
	found = status != NULL;
	*own_pid = pid;
	while (status && fgets(line, sizeof line, status)) {
		char *last = strrchr(line, '\t');
		if (strncmp(line, "NSpid:", 6) == 0 && last)
			*own_pid = decimal(last + 1);
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

/* A process in a container has another PID than on the host. Check the recorded PIDs first, because most processes are
 * not in containers. For the others, search all processes that this user may read. */
void find_pids(struct top_tenant *tenant, ino_t inode)
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
		int64_t pid = isdigit((unsigned char)entry->d_name[0]) ? decimal(entry->d_name) : 0;
		if (pid && maps_region(pid, inode, &own) && own != pid)
			found_pid(tenant, pid, own);
	}
	if (proc)
		closedir(proc);
}
