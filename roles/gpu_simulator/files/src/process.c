/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 */
#include "process.h"

#include <ctype.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "call.h"
#include "telemetry.h"

uint64_t process_start_ticks(int pid)
{
	char name[32], line[1024];
	snprintf(name, sizeof name, "/proc/%d/stat", pid);
	FILE *file = fopen(name, "re");
	if (!file)
		return 0;
	size_t length = fread(line, 1, sizeof line - 1, file);
	fclose(file);
	line[length] = 0;
	/* proc(5): the name is in parentheses and may contain any character. The state is field 3, and the start time is
	 * field 22. */
	char *rest = strrchr(line, ')'), state;
	unsigned long long ticks;
	if (!rest || sscanf(rest + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
	                    &state, &ticks) != 2)
		return 0;
	/* A zombie no longer uses GPUs. Add one to the ticks, because PID 1 of a machine starts at tick 0. */
	return state == 'Z' || state == 'X' ? 0 : ticks + 1;
}

/* /proc may hide other users' processes (hidepid, ProtectProc=). A signal still shows that such a process exists. */
static bool is_hidden(int pid)
{
	char name[32];
	snprintf(name, sizeof name, "/proc/%d/stat", pid);
	return access(name, F_OK) != 0 && (kill(pid, 0) == 0 || errno == EPERM);
}

bool process_is_alive(const process_t *process)
{
	if (!process->pid)
		return false;
	uint64_t started = process_start_ticks(process->pid);
	return started ? started == process->started_ticks : is_hidden(process->pid);
}

bool process_uses(const host_t *host, int gpu, int gi, int ci)
{
	for (int i = 0; i < MAX_PROCESSES; i++) {
		const process_t *p = &host->processes[i];
		if (p->pid && p->gpu == gpu && (gi < 0 || p->gi == gi) && (ci < 0 || p->ci == ci) && process_is_alive(p))
			return true;
	}
	return false;
}

int64_t process_memory_bytes(const host_t *host, int gpu, int gi)
{
	int64_t bytes = 0;
	for (int i = 0; i < MAX_PROCESSES; i++) {
		const process_t *p = &host->processes[i];
		if (p->pid && p->gpu == gpu && (gi < 0 || p->gi == gi) && process_is_alive(p))
			bytes += p->memory_bytes;
	}
	return bytes;
}

void process_forget_dead(host_t *host)
{
	for (int i = 0; i < MAX_PROCESSES; i++)
		if (host->processes[i].pid && !process_is_alive(&host->processes[i]))
			host->processes[i] = (process_t){ 0 };
}

bool process_is_on(const process_t *process, const target_t *target)
{
	return process->pid && process->gpu == target->gpu_index
	    && (!target->gi || (process->gi == target->gi_id && process->ci == target->ci_id))
	    && process_is_alive(process);
}

static const char *const TYPES[] = { "compute", "graphics", "mps" };

int process_type_by_name(const char *name)
{
	for (int i = 0; i < 3; i++)
		if (strcmp(TYPES[i], name) == 0)
			return i;
	return -1;
}

const char *process_type_name(int type)
{
	return TYPES[type];
}

/* Compute processes include MPS clients, as on an H200 with driver 580. */
bool process_is_listed(const process_t *process, int type)
{
	return process->type == type || (type == PROCESS_COMPUTE && process->type == PROCESS_MPS);
}

/* Layouts of list entries. The first layout has no instance IDs. The second and third layouts are the same. */
typedef enum { LAYOUT_V1, LAYOUT_V3 } layout_t;

static nvmlReturn_t processes(function_t function, nvmlDevice_t device, int type, layout_t layout, unsigned *count, void *out)
{
	QUERY_AS(function);
	AGGREGATE;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	unsigned room = out ? *count : 0, found = 0;
	for (int i = 0; i < MAX_PROCESSES; i++) {
		const process_t *p = &host->processes[i];
		if (!process_is_listed(p, type) || !process_is_on(p, &on))
			continue;
		if (found < room && layout == LAYOUT_V1)
			((nvmlProcessInfo_v1_t *)out)[found] = (nvmlProcessInfo_v1_t){ p->pid, p->memory_bytes };
		else if (found < room)
			((nvmlProcessInfo_t *)out)[found] = (nvmlProcessInfo_t){ p->pid, p->memory_bytes, p->gi, p->ci };
		found++;
	}
	return give_list(count, found, out);
}

/* Each list exists as a function without a version (first layout), as _v2 and as _v3. */
#define PROCESS_LIST(name, type) \
	nvmlReturn_t name(nvmlDevice_t device, unsigned *count, void *out) \
	{ return processes(F_##name, device, type, LAYOUT_V1, count, out); } \
	nvmlReturn_t name##_v2(nvmlDevice_t device, unsigned *count, void *out) \
	{ return processes(F_##name##_v2, device, type, LAYOUT_V3, count, out); } \
	nvmlReturn_t name##_v3(nvmlDevice_t device, unsigned *count, void *out) \
	{ return processes(F_##name##_v3, device, type, LAYOUT_V3, count, out); }

PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses, PROCESS_COMPUTE)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses, PROCESS_GRAPHICS)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses, PROCESS_MPS)

/* The library assigns no load to a process, so the GPU's processes share its utilization evenly. */
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *out, unsigned *count,
                                             unsigned long long last_seen_us)
{
	QUERY(nvmlDeviceGetProcessUtilization);
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (on.gpu->mig_current)
		return NVML_ERROR_NOT_SUPPORTED;
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	unsigned long long now_us = now.tv_sec * 1000000ULL + now.tv_nsec / 1000;
	unsigned room = out ? *count : 0, found = 0;
	for (int i = 0; i < MAX_PROCESSES && last_seen_us < now_us; i++) {
		if (!process_is_on(&host->processes[i], &on))
			continue;
		if (found < room)
			out[found] = (nvmlProcessUtilizationSample_t){ .pid = host->processes[i].pid, .timestamp_us = now_us };
		found++;
	}
	nvmlReturn_t result = give_list(count, found, out);
	if (found == 0)
		return NVML_ERROR_NOT_FOUND;
	telemetry_t telemetry = telemetry_of(host, on.gpu_index);
	for (unsigned i = 0; result == NVML_SUCCESS && i < found; i++) {
		out[i].sm_percent = telemetry.utilization_percent / found;
		out[i].memory_percent = telemetry.memory_utilization_percent / found;
	}
	return result;
}

bool process_name(int pid, char *out, size_t length)
{
	char path[32], name[4096];
	snprintf(path, sizeof path, "/proc/%d/exe", pid);
	ssize_t size = readlink(path, name, sizeof name - 1);
	if (size < 0) {
		/* For another user's process, only the name is visible. */
		snprintf(path, sizeof path, "/proc/%d/comm", pid);
		FILE *file = fopen(path, "re");
		if (!file)
			return false;
		size = fread(name, 1, sizeof name - 1, file);
		fclose(file);
		while (size > 0 && isspace((unsigned char)name[size - 1]))
			size--;
	}
	name[size] = 0;
	/* Like the driver, truncate a long name. */
	snprintf(out, length, "%s", name);
	return true;
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *out, unsigned length)
{
	CALL(nvmlSystemGetProcessName);
	if (!out || length == 0)
		return NVML_ERROR_INVALID_ARGUMENT;
	return process_name(pid, out, length) ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}
