/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The private interface of nvidia-smi: a table of functions that is identified by a GUID. Word 0 of the table is its
 * size in bytes, and word n is function n. The functions are undocumented. The functions below were found by observing
 * Debian's nvidia-smi 450 to 555. All other functions return NOT_SUPPORTED and write nothing, and nvidia-smi shows N/A
 * for them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "device.h"
#include "pci.h"
#include "process.h"
#include "topology.h"

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *out);
nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned *milliwatts);
nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, unsigned mode);
nvmlReturn_t nvmlDeviceGetModuleId(nvmlDevice_t device, unsigned *out);
nvmlReturn_t nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t device, char *out);
nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned words, unsigned long *out, unsigned scope);
nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_v1_t *out);
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values);

enum {
	ENTRIES = 320,
	/* Called before all other functions. They do not affect the output. */
	DEBUG_LOG = 26, SILENT = 72,
	COMMON_ANCESTOR = 23,
	HANDLE_BY_INDEX = 81,
	ENFORCED_POWER_LIMIT = 108,
	PRIVATE_FIELDS = 165,
	/* Equivalent to public functions, which later releases of nvidia-smi call instead (470: module and firmware). */
	MODULE_ID = 207, GSP_FIRMWARE_VERSION = 211, NEAREST_CPU_NODES = 223, GPU_PART_NUMBER = 231, MARGIN_TEMPERATURE = 240,
	/* Called by 525. In later releases, this function returns the part number of a replacement. No board has one. */
	MARGIN_TEMPERATURE_OF_525 = 237,
	HOST_LINK_GENERATION = 230,
	/* Called by 535 and later. From 550 on, the sparse mode has another number. */
	ADDRESSING_MODE = 242, SPARSE_MODE_OF_535 = 243, SPARSE_MODE = 249,
	/* Called by `nvlink -e` of 460 and 470. */
	LANE_ERRORS_OF_460 = 197, LANE_ERRORS_OF_470 = 208,
	/* Called by `-pm` of 555. */
	SET_PERSISTENCE_MODE = 251,
	SET_COMPUTE_POLICY = 192, LIST_COMPUTE_POLICIES = 193,
	/* The process lists that nvidia-smi 525 and later read. */
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

/*
 * `topo -m` identifies GPUs by PCI bus id, and has its own numbers for levels: 0 PIX, 1 PXB, 2 PHB, 3 NODE, 4 SYS. It
 * shows higher numbers as that many NVLinks.
 */
static _Thread_local bool in_topology;

static nvmlReturn_t common_ancestor(const char *one, const char *other, unsigned *level)
{
	in_topology = true;
	CALL_AS(F_nvmlInternalGetExportTable);
	host_t *host READING = state_read();
	const gpu_t *gpus[2] = { NULL, NULL };
	if (!host || !one || !other || !level)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (int i = 0; i < host->gpu_count; i++) {
		if (pci_is_at(&host->gpus[i], one))
			gpus[0] = &host->gpus[i];
		if (pci_is_at(&host->gpus[i], other))
			gpus[1] = &host->gpus[i];
	}
	if (!gpus[0] || !gpus[1])
		return NVML_ERROR_NOT_FOUND;
	unsigned between = topology_between(gpus[0], gpus[1]);
	if (between == TOPOLOGY_UNKNOWN)
		return NVML_ERROR_NOT_SUPPORTED;
	*level = between == TOPOLOGY_NODE ? 3 : between == TOPOLOGY_SYSTEM ? 4 : 0;
	return NVML_SUCCESS;
}

/*
 * Values are identified by numbers that differ from nvml.h and between releases. In `topo -m`, release 450 queries
 * links to switches with 1, always directly after a common ancestor. Releases from 470 on use 1 for something else,
 * outside `topo -m`. 550.54 and 555 query the reset status with 4 and 5 together.
 */
enum { PRIVATE_SWITCH_LINKS = 1, PRIVATE_RESET_STATUS = 4, PRIVATE_DRAIN_STATUS = 5 };
enum { FIELD_SWITCH_LINKS = 147, FIELD_RESET_STATUS = 226, FIELD_DRAIN_STATUS = 227 };

static unsigned public_field(unsigned number, int count)
{
	if (in_topology && count == 1 && number == PRIVATE_SWITCH_LINKS)
		return FIELD_SWITCH_LINKS;
	if (count == 2 && number == PRIVATE_RESET_STATUS)
		return FIELD_RESET_STATUS;
	return count == 2 && number == PRIVATE_DRAIN_STATUS ? FIELD_DRAIN_STATUS : 0;
}

static nvmlReturn_t private_fields(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
	if (count < 1 || !values)
		return NVML_ERROR_NOT_SUPPORTED;
	for (int i = 0; i < count; i++)
		if (!public_field(values[i].field, count))
			return NVML_ERROR_NOT_SUPPORTED;
	nvmlReturn_t result = NVML_SUCCESS;
	for (int i = 0; i < count && result == NVML_SUCCESS; i++) {
		unsigned number = values[i].field;
		values[i].field = public_field(number, count);
		result = nvmlDeviceGetFieldValues(device, 1, &values[i]);
		values[i].field = number;
	}
	return result;
}

static nvmlReturn_t nearest_cpu_nodes(nvmlDevice_t device, unsigned words, unsigned long *out)
{
	return nvmlDeviceGetMemoryAffinity(device, words, out, 0);
}

static nvmlReturn_t gpu_part_number(nvmlDevice_t device, char *out, unsigned length)
{
	QUERY_GPU_AS(F_nvmlInternalGetExportTable);
	return give_text(out, length, on.gpu->gpu_part_number);
}

static nvmlReturn_t margin_temperature(nvmlDevice_t device, int *celsius)
{
	nvmlMarginTemperature_v1_t margin = { .version = STRUCT_VERSION(nvmlMarginTemperature_v1_t, 1u) };
	nvmlReturn_t result = celsius ? nvmlDeviceGetMarginTemperature(device, &margin) : NVML_ERROR_INVALID_ARGUMENT;
	if (result == NVML_SUCCESS)
		*celsius = margin.celsius;
	return result;
}

static bool driver_is(int branch)
{
	host_t *host READING = state_read();
	return host && atoi(host->driver_version) == branch;
}

static nvmlReturn_t margin_temperature_of_525(nvmlDevice_t device, int *celsius)
{
	return driver_is(525) ? margin_temperature(device, celsius) : NVML_ERROR_NOT_SUPPORTED;
}

/* The library assumes that the host's slots support the GPU's generation. A GH200 with its Grace CPU has no slot. */
static nvmlReturn_t host_link_generation(nvmlDevice_t device, unsigned *out)
{
	QUERY_GPU_AS(F_nvmlInternalGetExportTable);
	return give(out, on.gpu->c2c_links > 0 ? UNKNOWN : on.gpu->pcie_generation);
}

static nvmlReturn_t addressing_mode(nvmlDevice_t device, unsigned *out)
{
	QUERY_GPU_AS(F_nvmlInternalGetExportTable);
	return give(out, device_addressing_mode(on.gpu));
}

/* Disabled on H100 and GH200. T4, A100, A40, L4, L40S, B200 and GB200 do not have this mode. */
static nvmlReturn_t sparse_mode(nvmlDevice_t device, unsigned *out)
{
	QUERY_GPU_AS(F_nvmlInternalGetExportTable);
	return give(out, on.gpu->architecture == ARCHITECTURE_HOPPER ? 0 : UNKNOWN);
}

/* Corrected errors on a link's lanes. They are always 0. The third argument is 4, like NVML_NVLINK_ERROR_DL_ECC_DATA. */
typedef struct { uint32_t corrected; uint8_t overflow; } lane_errors_t;

static nvmlReturn_t lane_errors(nvmlDevice_t device, unsigned link, unsigned counter, unsigned lanes, lane_errors_t *out)
{
	QUERY_GPU_AS(F_nvmlInternalGetExportTable);
	(void)counter;
	if (!out || link >= on.gpu->nvlink_links)
		return NVML_ERROR_INVALID_ARGUMENT;
	memset(out, 0, lanes * sizeof *out);
	return NVML_SUCCESS;
}

/* The driver accepts any value. nvidia-smi shows values above 3 as unknown. */
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

/* nvidia-smi shows a process that is in both the compute list and the MPS list as M+C. It does not show a process
 * that is only in the MPS list. */
static nvmlReturn_t list_processes(nvmlDevice_t device, int type, unsigned *count, listed_process_t *out)
{
	QUERY_AS(F_nvmlInternalGetExportTable);
	AGGREGATE;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	unsigned room = out ? *count : 0, found = 0;
	for (int i = 0; i < MAX_PROCESSES; i++) {
		const process_t *p = &host->processes[i];
		if (!process_is_listed(p, type) || !process_is_on(p, &on))
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
	table[DEBUG_LOG] = table[SILENT] = (const void *)nothing;
	table[COMMON_ANCESTOR] = (const void *)common_ancestor;
	table[ENFORCED_POWER_LIMIT] = (const void *)nvmlDeviceGetEnforcedPowerLimit;
	table[PRIVATE_FIELDS] = (const void *)private_fields;
	table[MODULE_ID] = (const void *)nvmlDeviceGetModuleId;
	table[GSP_FIRMWARE_VERSION] = (const void *)nvmlDeviceGetGspFirmwareVersion;
	table[NEAREST_CPU_NODES] = (const void *)nearest_cpu_nodes;
	table[GPU_PART_NUMBER] = (const void *)gpu_part_number;
	table[MARGIN_TEMPERATURE] = (const void *)margin_temperature;
	table[MARGIN_TEMPERATURE_OF_525] = (const void *)margin_temperature_of_525;
	table[HOST_LINK_GENERATION] = (const void *)host_link_generation;
	table[ADDRESSING_MODE] = (const void *)addressing_mode;
	table[SPARSE_MODE_OF_535] = table[SPARSE_MODE] = (const void *)sparse_mode;
	table[LANE_ERRORS_OF_460] = table[LANE_ERRORS_OF_470] = (const void *)lane_errors;
	table[SET_PERSISTENCE_MODE] = (const void *)nvmlDeviceSetPersistenceMode;
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
