/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The control interface (gpusim.h).
 */
#include "gpusim.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "boot.h"
#include "clocks.h"
#include "configuration.h"
#include "dump.h"
#include "events.h"
#include "fault.h"
#include "health.h"
#include "keys.h"
#include "load_text.h"
#include "mig.h"
#include "process.h"
#include "state.h"
#include "telemetry.h"

static _Thread_local char message[512];

__attribute__((format(printf, 2, 3))) static int fail(nvmlReturn_t result, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(message, sizeof message, format, arguments);
	va_end(arguments);
	return result;
}

const char *gpusimVersion(void)
{
	static char text[48];
	snprintf(text, sizeof text, "gpusim 1 (state schema %d)", STATE_SCHEMA);
	return text;
}

const char *gpusimMessage(void)
{
	return message;
}

/* Starts every call: clears the reason, and applies a restart if there was one. */
static int start(void)
{
	message[0] = 0;
	nvmlReturn_t result = state_open();
	if (result == NVML_SUCCESS)
		result = boot_follow();
	if (result != NVML_SUCCESS)
		return fail(result, "the simulated driver is missing, because %s is not usable; run gpusim init", state_path());
	return NVML_SUCCESS;
}

/* Opens the body of a call that changes the state. */
#define CHANGE \
	int result_ = start(); \
	if (result_ != NVML_SUCCESS) \
		return result_; \
	host_t *host CHANGING = state_begin(); \
	if (!host) \
		return fail(NVML_ERROR_UNKNOWN, "the state file %s cannot be written", state_path())

#define CHANGE_GPU(gpu_index) \
	CHANGE; \
	if (gpu_index < 0 || gpu_index >= host->gpu_count) \
		return fail(NVML_ERROR_NOT_FOUND, "GPU %d does not exist; the host has %d", gpu_index, host->gpu_count); \
	gpu_t *gpu = &host->gpus[gpu_index]

static bool any_process_lives(const host_t *host)
{
	for (int i = 0; i < MAX_PROCESSES; i++)
		if (process_is_alive(&host->processes[i]))
			return true;
	return false;
}

static int replace_host(host_t *fresh)
{
	nvmlReturn_t result = state_create();
	if (result != NVML_SUCCESS)
		return fail(result, "the state file %s cannot be created; check that its directory exists and is writable", state_path());
	host_t *host CHANGING = state_begin();
	if (!host)
		return fail(NVML_ERROR_UNKNOWN, "the state file %s cannot be written", state_path());
	if (any_process_lives(host))
		return fail(NVML_ERROR_IN_USE, "a process uses a GPU of this host; end it (gpusim show names it) and try again");
	/* Numbers continue, so that handles of old instances never refer to new ones, not even if another state file
	 * replaces this one. */
	fresh->event_count = host->event_count;
	for (int i = 0; i < MAX_EVENTS; i++)
		fresh->events[i] = (event_t){ .gpu = UNKNOWN };
	fresh->next_serial = host->next_serial ? host->next_serial : (uint64_t)load_now_ns();
	char identity[128];
	if (!boot_identity(identity))
		return fail(NVML_ERROR_UNKNOWN, "/proc does not show the start time of this host; run this where PID 1 is visible");
	snprintf(fresh->boot, sizeof fresh->boot, "%s", identity);
	memcpy(host, fresh, sizeof *host);
	fault_clear(state_traffic());
	for (int i = 0; i < F_COUNT; i++)
		atomic_store(&state_traffic()->calls[i], 0);
	return state_commit();
}

int gpusimCreate(const char *configuration)
{
	message[0] = 0;
	char reason[REASON_SIZE];
	host_t *fresh = calloc(1, sizeof *fresh);
	if (!fresh)
		return fail(NVML_ERROR_MEMORY, "out of memory");
	int result;
	if (!configuration || !configuration_read(configuration, fresh, reason))
		result = fail(NVML_ERROR_INVALID_ARGUMENT, "%s", configuration ? reason : "the configuration is missing");
	else
		result = replace_host(fresh);
	free(fresh);
	return result;
}

int gpusimDump(char *buffer, size_t *size)
{
	int result = start();
	if (result != NVML_SUCCESS)
		return result;
	if (!size)
		return fail(NVML_ERROR_INVALID_ARGUMENT, "the size is missing");
	char *text = NULL;
	size_t length = 0;
	FILE *out = open_memstream(&text, &length);
	if (!out)
		return fail(NVML_ERROR_MEMORY, "out of memory");
	{
		host_t *host READING = state_read();
		dump_host(out, host, state_traffic());
	}
	if (fclose(out) != 0) {
		result = fail(NVML_ERROR_MEMORY, "out of memory");
	} else {
		if (buffer && *size > length)
			memcpy(buffer, text, length + 1);
		else
			result = fail(NVML_ERROR_INSUFFICIENT_SIZE, "%zu bytes are needed", length + 1);
		*size = length + 1;
	}
	free(text);
	return result;
}

int gpusimWait(uint32_t *seen, unsigned timeout_ms)
{
	int result = start();
	if (result != NVML_SUCCESS)
		return result;
	if (!seen)
		return fail(NVML_ERROR_INVALID_ARGUMENT, "the number of changes is missing");
	return state_wait(seen, timeout_ms) ? NVML_SUCCESS : fail(NVML_ERROR_TIMEOUT, "the state did not change");
}

int gpusimSet(int gpu_index, const char *key, const char *value)
{
	CHANGE;
	if (gpu_index >= host->gpu_count || gpu_index < -1)
		return fail(NVML_ERROR_NOT_FOUND, "GPU %d does not exist; the host has %d", gpu_index, host->gpu_count);
	const char *wrong = NULL;
	if (gpu_index >= 0 && key && value && health_knows(key)) {
		nvmlReturn_t result = health_set(&host->gpus[gpu_index], key, value, &wrong);
		return wrong ? fail(result, "%s: %s", key, wrong) : (int)state_commit();
	}
	const section_t *section = gpu_index < 0 ? &SECTION_HOST : &SECTION_GPU;
	const config_key_t *known = key ? key_by_name(section, key) : NULL;
	if (!known || !(known->flags & ADJUSTABLE))
		return fail(NVML_ERROR_INVALID_ARGUMENT, "%s is not a switch of a %s", key ? key : "nothing", section->name);
	if (gpu_index >= 0)
		telemetry_settle_energy(host, &host->gpus[gpu_index]);
	wrong = value ? key_store(known, gpu_index < 0 ? (void *)host : &host->gpus[gpu_index], value) : "the value is missing";
	return wrong ? fail(NVML_ERROR_INVALID_ARGUMENT, "%s: %s", key, wrong) : (int)state_commit();
}

int gpusimLoad(int gpu_index, int gi, const char *text)
{
	CHANGE_GPU(gpu_index);
	if (gi != -1 && (gi < 0 || gi >= MAX_GIS || !gpu->gis[gi].serial))
		return fail(NVML_ERROR_NOT_FOUND, "GPU %d has no GPU instance %d", gpu_index, gi);
	load_t *load = gi < 0 ? &gpu->load : &gpu->gis[gi].load;
	int64_t room_mib = gi < 0 ? gpu->memory_total_mib - gpu->memory_reserved_mib
	                          : gpu->gi_profiles[gpu->gis[gi].profile].memory_mib;
	telemetry_settle_energy(host, gpu);
	*load = (load_t){ .pattern = LOAD_NONE };
	load_forget_unused_samples(host);
	char reason[REASON_SIZE] = "";
	nvmlReturn_t result = text ? load_read(text, host, room_mib, load, reason) : NVML_SUCCESS;
	/* The previous load counts up to this time. The new load starts here. */
	if (text)
		load->since_ns = gpu->energy_since_ns;
	return result == NVML_SUCCESS ? (int)state_commit() : fail(result, "%s", reason);
}

/* Returns whether the compute mode permits the process. EXCLUSIVE_PROCESS permits one process, PROHIBITED none. */
static bool mode_admits(const host_t *host, int64_t mode, const process_t *newcomer)
{
	if (mode == COMPUTE_PROHIBITED)
		return false;
	for (int i = 0; mode == COMPUTE_EXCLUSIVE_PROCESS && i < MAX_PROCESSES; i++) {
		const process_t *p = &host->processes[i];
		if (p->pid && p->pid != newcomer->pid && p->gpu == newcomer->gpu && p->gi == newcomer->gi && p->ci == newcomer->ci)
			return false;
	}
	return true;
}

/* Returns the entry of the same process in the same place, or else a free entry, or NULL. */
static process_t *entry_for(host_t *host, const process_t *wanted)
{
	process_t *free_entry = NULL;
	for (int i = 0; i < MAX_PROCESSES; i++) {
		process_t *p = &host->processes[i];
		if (p->pid == wanted->pid && p->gpu == wanted->gpu && p->gi == wanted->gi && p->ci == wanted->ci)
			return p;
		if (!p->pid && !free_entry)
			free_entry = p;
	}
	return free_entry;
}

static int refuse_lost(int gpu_index)
{
	return fail(NVML_ERROR_GPU_IS_LOST, "GPU %d is lost; run gpusim restore or reboot", gpu_index);
}

int gpusimAttach(int pid, int gpu_index, int gi, int ci, const char *type, uint64_t memory_bytes)
{
	CHANGE_GPU(gpu_index);
	process_t newcomer = {
		.pid = pid, .gpu = gpu_index, .gi = gi, .ci = ci, .type = type ? process_type_by_name(type) : -1,
		.started_ticks = pid > 0 ? process_start_ticks(pid) : 0, .memory_bytes = memory_bytes,
	};
	if (newcomer.type < 0)
		return fail(NVML_ERROR_INVALID_ARGUMENT, "the type of a process must be compute, graphics or mps");
	if (!newcomer.started_ticks)
		return fail(NVML_ERROR_NOT_FOUND, "process %d does not exist", pid);
	if (gpu->lost)
		return refuse_lost(gpu_index);
	target_t on = { .gpu = gpu, .gpu_index = gpu_index };
	int64_t mode = gpu->compute_mode;
	if (gpu->mig_current) {
		if (gi < 0 || ci < 0)
			return fail(NVML_ERROR_INVALID_ARGUMENT, "GPU %d is in MIG mode: a process needs a GPU instance and a compute instance", gpu_index);
		if (gi >= MAX_GIS || ci >= MAX_CIS || !gpu->gis[gi].serial || !gpu->gis[gi].cis[ci].serial)
			return fail(NVML_ERROR_NOT_FOUND, "GPU %d has no compute instance %d in a GPU instance %d", gpu_index, ci, gi);
		on.gi = &gpu->gis[gi];
		on.gi_id = gi;
		mode = on.gi->cis[ci].compute_mode;
	} else if (gi != -1 || ci != -1) {
		return fail(NVML_ERROR_NOT_FOUND, "GPU %d is not in MIG mode and has no instances", gpu_index);
	}
	process_forget_dead(host);
	if (!mode_admits(host, mode, &newcomer))
		return fail(NVML_ERROR_IN_USE, "the compute mode of GPU %d refuses another process", gpu_index);
	process_t *entry = entry_for(host, &newcomer);
	if (!entry)
		return fail(NVML_ERROR_INSUFFICIENT_RESOURCES, "%d processes already use GPUs of this host", MAX_PROCESSES);
	*entry = (process_t){ 0 };
	uint64_t free_bytes = telemetry_framebuffer(host, &on).free;
	if (memory_bytes > free_bytes)
		return fail(NVML_ERROR_INSUFFICIENT_RESOURCES, "%llu bytes were requested and %llu are free",
		            (unsigned long long)memory_bytes, (unsigned long long)free_bytes);
	*entry = newcomer;
	return state_commit();
}

int gpusimDetach(int pid)
{
	CHANGE;
	bool found = false;
	for (int i = 0; i < MAX_PROCESSES; i++) {
		if (pid > 0 && host->processes[i].pid == pid) {
			host->processes[i] = (process_t){ 0 };
			found = true;
		}
	}
	return found ? (int)state_commit() : fail(NVML_ERROR_NOT_FOUND, "process %d does not use a GPU", pid);
}

int gpusimXid(int gpu_index, int gi, int ci, unsigned number)
{
	CHANGE_GPU(gpu_index);
	if (!number)
		return fail(NVML_ERROR_INVALID_ARGUMENT, "Xid numbers start at 1");
	if ((gi == -1 && ci != -1) || gi < -1 || ci < -1)
		return fail(NVML_ERROR_INVALID_ARGUMENT, "a compute instance needs its GPU instance");
	if (gi >= MAX_GIS || ci >= MAX_CIS || (gi >= 0 && !gpu->gis[gi].serial) || (ci >= 0 && !gpu->gis[gi].cis[ci].serial))
		return fail(NVML_ERROR_NOT_FOUND, "GPU %d has no such instance; gpusim show lists them", gpu_index);
	events_raise(host, (event_t){ .type = EVENT_XID, .data = number, .gpu = gpu_index, .gi = gi, .ci = ci });
	return state_commit();
}

/* "GPU has fallen off the bus" in NVIDIA's table of Xid errors (docs.nvidia.com/deploy/xid-errors). */
enum { XID_OFF_THE_BUS = 79 };

int gpusimLose(int gpu_index)
{
	CHANGE_GPU(gpu_index);
	if (gpu->lost)
		return NVML_SUCCESS;
	gpu->lost = 1;
	events_raise(host, (event_t){ .type = EVENT_XID, .data = XID_OFF_THE_BUS, .gpu = gpu_index, .gi = UNKNOWN, .ci = UNKNOWN });
	return state_commit();
}

int gpusimRestore(int gpu_index)
{
	CHANGE_GPU(gpu_index);
	gpu->lost = 0;
	return state_commit();
}

int gpusimReset(int gpu_index)
{
	CHANGE_GPU(gpu_index);
	if (gpu->lost)
		return refuse_lost(gpu_index);
	if (process_uses(host, gpu_index, -1, -1))
		return fail(NVML_ERROR_IN_USE, "a process uses GPU %d; end it (gpusim show names it) and try again", gpu_index);
	if (gpu->held_by_kernel)
		return fail(NVML_ERROR_IN_USE, "a kernel module holds GPU %d; reboot the host", gpu_index);
	if (gpu->reset_refused)
		return fail(NVML_ERROR_NOT_SUPPORTED, "GPU %d cannot be reset here; reboot the host", gpu_index);
	telemetry_settle_energy(host, gpu);
	mig_drop_instances(gpu);
	gpu->load = (load_t){ .pattern = LOAD_NONE };
	gpu->compute_mode = COMPUTE_DEFAULT;
	gpu->timeslice = 0;
	gpu->mig_current = gpu->mig_pending;
	clocks_reset(gpu);
	health_reload(&gpu->health);
	return state_commit();
}

int gpusimReboot(void)
{
	CHANGE;
	char identity[128];
	snprintf(identity, sizeof identity, "%s", host->boot);
	boot_restart(host, identity);
	return state_commit();
}

/* Opens the state file for faults and counts. This process must be able to write to the file. */
static int start_traffic(void)
{
	int result = start();
	if (result == NVML_SUCCESS && !state_traffic())
		return fail(NVML_ERROR_UNKNOWN, "the state file %s cannot be written", state_path());
	return result;
}

static int arm(const char *function, int gpu_index, unsigned nth, bool lasts, const char *action)
{
	int result = start_traffic(), number = function ? function_by_name(function) : -1;
	int32_t code;
	if (result != NVML_SUCCESS)
		return result;
	if (number < 0)
		return fail(NVML_ERROR_NOT_FOUND, "%s is not an NVML function", function ? function : "nothing");
	if (number == FAULT_ANY && gpu_index == UNKNOWN)
		return fail(NVML_ERROR_INVALID_ARGUMENT, "any needs a GPU: name the GPU");
	if (nth < 1 || nth > INT32_MAX)
		return fail(NVML_ERROR_INVALID_ARGUMENT, "calls are counted from 1");
	if (!action || !fault_action_by_name(action, &code))
		return fail(NVML_ERROR_INVALID_ARGUMENT, "%s is not an NVML error, kill, kill-inside, kill-after or stop", action ? action : "nothing");
	if (!fault_arm(state_traffic(), number, gpu_index, nth, lasts, code))
		return fail(NVML_ERROR_INSUFFICIENT_RESOURCES, "%d faults are already pending", MAX_FAULTS);
	return NVML_SUCCESS;
}

int gpusimFail(const char *function, unsigned nth, const char *action)
{
	return arm(function, UNKNOWN, nth, false, action);
}

int gpusimFailOn(const char *function, int gpu_index, unsigned nth, int lasting, const char *action)
{
	int result = start(), count = 0;
	if (result == NVML_SUCCESS) {
		host_t *host READING = state_read();
		count = host ? host->gpu_count : 0;
	}
	if (result == NVML_SUCCESS && (gpu_index < UNKNOWN || gpu_index >= count))
		result = fail(NVML_ERROR_NOT_FOUND, "GPU %d does not exist; the host has %d", gpu_index, count);
	return result == NVML_SUCCESS ? arm(function, gpu_index, nth, lasting != 0, action) : result;
}

int gpusimFailClear(void)
{
	int result = start_traffic();
	if (result == NVML_SUCCESS)
		fault_clear(state_traffic());
	return result;
}

int gpusimClearCalls(void)
{
	int result = start_traffic();
	for (int i = 0; result == NVML_SUCCESS && i < F_COUNT; i++)
		atomic_store(&state_traffic()->calls[i], 0);
	return result;
}
