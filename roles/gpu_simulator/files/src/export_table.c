/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The private door of nvidia-smi: a table of functions, found by a GUID. Word 0 is its size in bytes, word n is function
 * n. What the functions are for nobody documents; those below were found by watching Debian's nvidia-smi 470, 535 and 550,
 * and all others answer NOT_SUPPORTED and write nothing, which nvidia-smi shows as N/A.
 */
#include <stdio.h>
#include <string.h>

#include "call.h"
#include "process.h"

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *out);

enum {
	ENTRIES = 320,
	/* Asked ahead of all others; nothing hangs on what they do. */
	DEBUG_LOG = 26, SILENT_A = 23, SILENT_B = 72,
	HANDLE_BY_INDEX = 81,
	SET_COMPUTE_POLICY = 192, LIST_COMPUTE_POLICIES = 193,
	/* The process lists of nvidia-smi 525 and later. */
	COMPUTE_PROCESSES = 213, MPS_PROCESSES = 214, GRAPHICS_PROCESSES = 215,
};

enum { POLICY_TIMESLICE = 0 };

typedef struct { uint32_t policy, value; } policy_t;
typedef struct { uint32_t count; policy_t policies[1]; } policies_t;

typedef struct {
	uint32_t pid, unknown;
	uint64_t memory_bytes;
	uint32_t gpu_instance, compute_instance;
	uint64_t unknown_too;
	char name[4096];
} listed_process_t;
_Static_assert(sizeof(listed_process_t) == 4128, "an entry of nvidia-smi 535 and 550");

static nvmlReturn_t unsupported(void)
{
	return NVML_ERROR_NOT_SUPPORTED;
}

static nvmlReturn_t nothing(void)
{
	return NVML_SUCCESS;
}

/* The driver takes any value, and nvidia-smi calls those above 3 unknown. */
static nvmlReturn_t set_compute_policy(nvmlDevice_t device, const policy_t *asked)
{
	CHANGE_AS(F_nvmlInternalGetExportTable);
	if (!asked)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (on.gi || !on.gpu->timeslicing || asked->policy != POLICY_TIMESLICE)
		return NVML_ERROR_NOT_SUPPORTED;
	on.gpu->timeslice = asked->value;
	return state_commit();
}

static nvmlReturn_t list_compute_policies(nvmlDevice_t device, policies_t *out)
{
	QUERY_GPU_AS(F_nvmlInternalGetExportTable);
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!on.gpu->timeslicing)
		return NVML_ERROR_NOT_SUPPORTED;
	*out = (policies_t){ 1, { { POLICY_TIMESLICE, on.gpu->timeslice } } };
	return NVML_SUCCESS;
}

/* A client of MPS is in the list of compute processes too: nvidia-smi shows it as M+C, and one that is not, not at all. */
static bool is_listed(const process_t *process, int type)
{
	return process->type == type || (type == PROCESS_COMPUTE && process->type == PROCESS_MPS);
}

static nvmlReturn_t list_processes(nvmlDevice_t device, int type, unsigned *count, listed_process_t *out)
{
	QUERY_AS(F_nvmlInternalGetExportTable);
	AGGREGATE;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	unsigned room = out ? *count : 0, found = 0;
	for (int i = 0; i < MAX_PROCESSES; i++) {
		const process_t *p = &host->processes[i];
		if (!is_listed(p, type) || !process_is_on(p, &on))
			continue;
		if (found < room) {
			out[found] = (listed_process_t){ .pid = p->pid, .memory_bytes = p->memory_bytes,
			                                 .gpu_instance = p->gi, .compute_instance = p->ci };
			process_name(p->pid, out[found].name, sizeof out[found].name);
		}
		found++;
	}
	return give_list(count, found, out);
}

#define PROCESSES(name, type) \
	static nvmlReturn_t name(nvmlDevice_t device, unsigned *count, listed_process_t *out) \
	{ return list_processes(device, type, count, out); }

PROCESSES(compute_processes, PROCESS_COMPUTE)
PROCESSES(graphics_processes, PROCESS_GRAPHICS)
PROCESSES(mps_processes, PROCESS_MPS)

static const void *table[ENTRIES];

__attribute__((constructor)) static void fill_table(void)
{
	table[0] = (const void *)sizeof table;
	for (int i = 1; i < ENTRIES; i++)
		table[i] = (const void *)unsupported;
	table[DEBUG_LOG] = table[SILENT_A] = table[SILENT_B] = (const void *)nothing;
	table[HANDLE_BY_INDEX] = (const void *)nvmlDeviceGetHandleByIndex_v2;
	table[SET_COMPUTE_POLICY] = (const void *)set_compute_policy;
	table[LIST_COMPUTE_POLICIES] = (const void *)list_compute_policies;
	table[COMPUTE_PROCESSES] = (const void *)compute_processes;
	table[GRAPHICS_PROCESSES] = (const void *)graphics_processes;
	table[MPS_PROCESSES] = (const void *)mps_processes;
}

nvmlReturn_t nvmlInternalGetExportTable(const void **out, const unsigned char *guid)
{
	static const unsigned char known[16] = {
		0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e, 0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4
	};
	call_t call __attribute__((cleanup(call_leave))) = call_enter_uninitialized(F_nvmlInternalGetExportTable);
	if (call.result != NVML_SUCCESS)
		return call.result;
	if (!out || !guid)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (memcmp(guid, known, sizeof known) != 0)
		return NVML_ERROR_NOT_FOUND;
	*out = table;
	return NVML_SUCCESS;
}
