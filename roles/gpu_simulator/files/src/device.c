/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The GPUs and their constant properties.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "call.h"
#include "device.h"
#include "mig.h"
#include "pci.h"
#include "telemetry.h"

/* A lost GPU still counts. In nvml.h, the number includes "all devices in the system even if" no handle of a device
 * can be returned (nvmlDeviceGetHandleByIndex_v2), and nvmlDeviceGetCount_v2 does not return GPU_IS_LOST. */
static nvmlReturn_t count(function_t function, unsigned *out)
{
	CALL_AS(function);
	host_t *host READING = state_read();
	return host ? give(out, host->gpu_count) : NVML_ERROR_UNKNOWN;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned *out) { return count(F_nvmlDeviceGetCount, out); }
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *out) { return count(F_nvmlDeviceGetCount_v2, out); }

static nvmlReturn_t give_handle(nvmlDevice_t *out, nvmlDevice_t handle)
{
	*out = handle;
	return handle ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

static nvmlReturn_t give_gpu(nvmlDevice_t *out, const host_t *host, int index)
{
	if (host->gpus[index].lost)
		return NVML_ERROR_GPU_IS_LOST;
	nvmlReturn_t fault = call_concerns(index);
	return fault == NVML_SUCCESS ? give_handle(out, handle_of_gpu(index)) : fault;
}

/* The result of a search by UUID or serial number that found nothing. nvml.h: GPU_IS_LOST "if any GPU has fallen off
 * the bus", because that GPU may be the requested one. Whether the driver returns GPU_IS_LOST in a search for
 * another GPU is undocumented. Here, searches for other GPUs succeed. */
static nvmlReturn_t not_found(const host_t *host)
{
	for (int i = 0; i < host->gpu_count; i++)
		if (host->gpus[i].lost)
			return NVML_ERROR_GPU_IS_LOST;
	return NVML_ERROR_NOT_FOUND;
}

static nvmlReturn_t by_index(function_t function, unsigned index, nvmlDevice_t *out)
{
	CALL_AS(function);
	host_t *host READING = state_read();
	if (!host || !out || index >= (unsigned)host->gpu_count)
		return NVML_ERROR_INVALID_ARGUMENT;
	return give_gpu(out, host, index);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *out)
{
	return by_index(F_nvmlDeviceGetHandleByIndex, index, out);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *out)
{
	return by_index(F_nvmlDeviceGetHandleByIndex_v2, index, out);
}

static nvmlReturn_t by_pci_bus_id(function_t function, const char *text, nvmlDevice_t *out)
{
	CALL_AS(function);
	host_t *host READING = state_read();
	pci_address_t wanted;
	if (!host || !out || !text || !pci_parse(text, &wanted))
		return NVML_ERROR_INVALID_ARGUMENT;
	for (int i = 0; i < host->gpu_count; i++)
		if (pci_is_at(&host->gpus[i], text))
			return give_gpu(out, host, i);
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *text, nvmlDevice_t *out)
{
	return by_pci_bus_id(F_nvmlDeviceGetHandleByPciBusId, text, out);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *text, nvmlDevice_t *out)
{
	return by_pci_bus_id(F_nvmlDeviceGetHandleByPciBusId_v2, text, out);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *out)
{
	CALL(nvmlDeviceGetHandleByUUID);
	host_t *host READING = state_read();
	if (!host || !uuid || !out)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (int i = 0; i < host->gpu_count; i++) {
		target_t on = { .gpu = &host->gpus[i], .gpu_index = i };
		if (on.gpu->lost)
			continue;
		if (strcasecmp(on.gpu->uuid, uuid) == 0)
			return give_gpu(out, host, i);
		for (int n = 0; mig_device_at(on.gpu, n, &on.gi_id, &on.ci_id); n++) {
			on.gi = &on.gpu->gis[on.gi_id];
			on.ci = &on.gi->cis[on.ci_id];
			if (strcasecmp(on.ci->uuid, uuid) == 0) {
				nvmlReturn_t fault = call_concerns(i);
				return fault == NVML_SUCCESS ? give_handle(out, handle_of_mig_device(&on)) : fault;
			}
		}
	}
	return not_found(host);
}

nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *out)
{
	CALL(nvmlDeviceGetHandleBySerial);
	host_t *host READING = state_read();
	if (!host || !serial || !*serial || !out)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (int i = 0; i < host->gpu_count; i++)
		if (!host->gpus[i].lost && strcmp(host->gpus[i].serial, serial) == 0)
			return give_gpu(out, host, i);
	return not_found(host);
}

/* nvtop and nvitop query the index of each MIG device. If the query fails, they omit the device. */
nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index)
{
	QUERY(nvmlDeviceGetIndex);
	if (!on.ci)
		return give(index, on.gpu_index);
	int gi, ci;
	for (int n = 0; mig_device_at(on.gpu, n, &gi, &ci); n++)
		if (gi == on.gi_id && ci == on.ci_id)
			return give(index, n);
	return NVML_ERROR_NOT_FOUND;
}

/* The name of a MIG device consists of the GPU's name and the profile's name: "NVIDIA H100 80GB HBM3 MIG 3g.40gb". */
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *out, unsigned length)
{
	QUERY(nvmlDeviceGetName);
	if (!on.ci)
		return give_text(out, length, on.gpu->name);
	char name[192];
	const gi_profile_t *gi = &on.gpu->gi_profiles[on.gi->profile];
	const ci_profile_t *ci = &on.gpu->ci_profiles[on.ci->profile];
	if (ci->slices == ci->gi_slices)
		snprintf(name, sizeof name, "%s MIG %s", on.gpu->name, gi->name);
	else
		snprintf(name, sizeof name, "%s MIG %dc.%s", on.gpu->name, (int)ci->slices, gi->name);
	return give_text(out, length, name);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *out, unsigned length)
{
	QUERY(nvmlDeviceGetUUID);
	return give_text(out, length, on.ci ? on.ci->uuid : on.gpu->uuid);
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *minor)
{
	QUERY(nvmlDeviceGetMinorNumber);
	return give(minor, on.gpu->minor_number);
}

nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, unsigned *brand)
{
	QUERY(nvmlDeviceGetBrand);
	return give(brand, on.gpu->brand);
}

nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, unsigned *architecture)
{
	QUERY(nvmlDeviceGetArchitecture);
	return give(architecture, on.gpu->architecture);
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
	QUERY(nvmlDeviceGetCudaComputeCapability);
	if (!major || !minor)
		return NVML_ERROR_INVALID_ARGUMENT;
	return sscanf(on.gpu->compute_capability, "%d.%d", major, minor) == 2 ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

nvmlReturn_t nvmlDeviceGetNumGpuCores(nvmlDevice_t device, unsigned *cores)
{
	QUERY_GPU(nvmlDeviceGetNumGpuCores);
	bool known = on.gpu->cores_per_multiprocessor != UNKNOWN;
	return give(cores, known ? on.gpu->cores_per_multiprocessor * on.gpu->multiprocessors : UNKNOWN);
}

/* Defines a query for one of the GPU's values. The query works for the GPU only, or also for its MIG devices. */
#define GPU_NUMBER(name, member) \
	nvmlReturn_t name(nvmlDevice_t device, unsigned *out) { QUERY_GPU(name); return give(out, on.gpu->member); }
#define GPU_TEXT(name, member) \
	nvmlReturn_t name(nvmlDevice_t device, char *out, unsigned length) \
	{ QUERY_GPU(name); return give_text(out, length, on.gpu->member); }

GPU_TEXT(nvmlDeviceGetSerial, serial)
GPU_TEXT(nvmlDeviceGetVbiosVersion, vbios_version)
GPU_TEXT(nvmlDeviceGetBoardPartNumber, board_part_number)
GPU_TEXT(nvmlDeviceGetInforomImageVersion, inforom_image)
GPU_NUMBER(nvmlDeviceGetModuleId, module_id)
GPU_NUMBER(nvmlDeviceGetBoardId, board_id)
GPU_NUMBER(nvmlDeviceGetMemoryBusWidth, memory_bus_width_bits)
GPU_NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, pcie_generation)
GPU_NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, pcie_generation)
GPU_NUMBER(nvmlDeviceGetCurrPcieLinkWidth, pcie_width)
GPU_NUMBER(nvmlDeviceGetMaxPcieLinkWidth, pcie_width)
GPU_NUMBER(nvmlDeviceGetDisplayActive, display)
GPU_NUMBER(nvmlDeviceGetDisplayMode, display)

nvmlReturn_t nvmlDeviceGetNumFans(nvmlDevice_t device, unsigned *out)
{
	QUERY_GPU(nvmlDeviceGetNumFans);
	return give(out, on.gpu->fan_idle_percent > 0 ? 1 : 0);
}

/* nvmlGpuVirtualizationMode_t. 0 means none (bare metal). */
nvmlReturn_t nvmlDeviceGetVirtualizationMode(nvmlDevice_t device, unsigned *mode)
{
	QUERY_GPU(nvmlDeviceGetVirtualizationMode);
	return give(mode, on.gpu->virtualization_mode);
}

/* NVML_BUS_TYPE_PCIE, for modules too. The bus type of an H100 in a DGX is PCIe in
 * /proc/driver/nvidia/gpus/ADDRESS/information. */
nvmlReturn_t nvmlDeviceGetBusType(nvmlDevice_t device, unsigned *type)
{
	QUERY_GPU(nvmlDeviceGetBusType);
	return give(type, 2);
}

nvmlReturn_t nvmlDeviceGetMultiGpuBoard(nvmlDevice_t device, unsigned *multi)
{
	QUERY_GPU(nvmlDeviceGetMultiGpuBoard);
	return give(multi, 0);
}

nvmlReturn_t nvmlDeviceGetInforomVersion(nvmlDevice_t device, unsigned object, char *out, unsigned length)
{
	QUERY_GPU(nvmlDeviceGetInforomVersion);
	const char *const versions[] = { on.gpu->inforom_oem, on.gpu->inforom_ecc, on.gpu->inforom_power };
	if (object >= sizeof versions / sizeof *versions)
		return NVML_ERROR_INVALID_ARGUMENT;
	return give_text(out, length, versions[object]);
}

/*
 * The GPU system processor runs the driver's firmware, which has the driver's version. Boards from T4 to GB200 show
 * this (github.com/NVIDIA/k8s-test-infra tests/e2e/go/assertions/nvidiasmi/testdata/hardware). Drivers have the
 * firmware since 510, for Turing and later (driver README, "GSP Firmware").
 */
enum { FIRST_DRIVER_WITH_GSP = 510 };

static bool has_gsp(const host_t *host, const gpu_t *gpu)
{
	return gpu->architecture >= ARCHITECTURE_TURING && atoi(host->driver_version) >= FIRST_DRIVER_WITH_GSP;
}

/* The buffer is 64 bytes long (nvml.h, NVML_GSP_FIRMWARE_VERSION_BUF_SIZE). */
nvmlReturn_t nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t device, char *out)
{
	QUERY_GPU(nvmlDeviceGetGspFirmwareVersion);
	return has_gsp(host, on.gpu) ? give_text(out, 64, host->driver_version) : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetGspFirmwareMode(nvmlDevice_t device, unsigned *enabled, unsigned *by_default)
{
	QUERY_GPU(nvmlDeviceGetGspFirmwareMode);
	if (!enabled || !by_default)
		return NVML_ERROR_INVALID_ARGUMENT;
	*enabled = *by_default = has_gsp(host, on.gpu);
	return NVML_SUCCESS;
}

/*
 * First driver branch that has each function, from nvml.h and nvidia-ml-py of that branch and the previous one. Older
 * drivers lack the symbol.
 */
enum { FIRST_DRIVER_WITH_CAPABILITIES = 555, FIRST_DRIVER_WITH_ADDRESSING_MODE = 580, FIRST_DRIVER_WITH_REPAIR_STATUS = 580,
       FIRST_DRIVER_WITH_PDI = 580 };

#define SINCE(first) \
	if (atoi(host->driver_version) < first) \
		return NVML_ERROR_FUNCTION_NOT_FOUND

/* Whether the memory of a Grace CPU extends the GPU's memory: disabled on boards from V100 to B200, and on a GB200. */
nvmlReturn_t nvmlDeviceGetCapabilities(nvmlDevice_t device, nvmlDeviceCapabilities_v1_t *out)
{
	QUERY_GPU(nvmlDeviceGetCapabilities);
	SINCE(FIRST_DRIVER_WITH_CAPABILITIES);
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (out->version != STRUCT_VERSION(nvmlDeviceCapabilities_v1_t, 1u))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	out->mask = 0;
	return NVML_SUCCESS;
}

/*
 * How a GPU accesses system memory. GPUs with a Grace CPU (GH200, GB200) use ATS. For others it depends on the kernel:
 * T4, A100, L40S and H100 were observed with HMM, and A40, L4 and B200 with none. V100 has no such mode.
 */
int64_t device_addressing_mode(const gpu_t *gpu)
{
	if (gpu->architecture < ARCHITECTURE_TURING)
		return UNKNOWN;
	return gpu->c2c_links > 0 ? ADDRESSING_ATS : ADDRESSING_HMM;
}

nvmlReturn_t nvmlDeviceGetAddressingMode(nvmlDevice_t device, nvmlDeviceAddressingMode_v1_t *out)
{
	QUERY_GPU(nvmlDeviceGetAddressingMode);
	SINCE(FIRST_DRIVER_WITH_ADDRESSING_MODE);
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (out->version != STRUCT_VERSION(nvmlDeviceAddressingMode_v1_t, 1u))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	return give(&out->value, device_addressing_mode(on.gpu));
}

/* No repair is needed, as on L40S, H100, B200 and GB200. A T4 does not have this status. No Ampere board was
 * checked. */
nvmlReturn_t nvmlDeviceGetRepairStatus(nvmlDevice_t device, nvmlRepairStatus_v1_t *out)
{
	QUERY_GPU(nvmlDeviceGetRepairStatus);
	SINCE(FIRST_DRIVER_WITH_REPAIR_STATUS);
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (out->version != STRUCT_VERSION(nvmlRepairStatus_v1_t, 1u))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (on.gpu->architecture <= ARCHITECTURE_AMPERE)
		return NVML_ERROR_NOT_SUPPORTED;
	out->channel_pending = out->tpc_pending = 0;
	return NVML_SUCCESS;
}

/* A number that identifies the board. The library derives it from the board's UUID. */
nvmlReturn_t nvmlDeviceGetPdi(nvmlDevice_t device, nvmlPdi_v1_t *out)
{
	QUERY_GPU(nvmlDeviceGetPdi);
	SINCE(FIRST_DRIVER_WITH_PDI);
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (out->version != STRUCT_VERSION(nvmlPdi_v1_t, 1u))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	/* FNV-1a hash. */
	out->value = 0xcbf29ce484222325u;
	for (const char *c = on.gpu->uuid; *c; c++)
		out->value = (out->value ^ (unsigned char)*c) * 0x100000001b3u;
	return NVML_SUCCESS;
}

/* Confidential computing is off, so no memory is protected. nvidia-smi -q -x of T4, A100 and H100 shows 0 of 0 MiB. */
nvmlReturn_t nvmlDeviceGetConfComputeProtectedMemoryUsage(nvmlDevice_t device, nvmlMemory_t *out)
{
	QUERY_GPU(nvmlDeviceGetConfComputeProtectedMemoryUsage);
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	*out = (nvmlMemory_t){ 0, 0, 0 };
	return NVML_SUCCESS;
}

/* The simulated link has no errors. */
nvmlReturn_t nvmlDeviceGetPcieReplayCounter(nvmlDevice_t device, unsigned *out)
{
	QUERY_GPU(nvmlDeviceGetPcieReplayCounter);
	return give(out, 0);
}

/* NVML_PCIE_LINK_MAX_SPEED_* of nvml.h: 1 for 2500 MB/s, and one more for each further generation. */
nvmlReturn_t nvmlDeviceGetPcieLinkMaxSpeed(nvmlDevice_t device, unsigned *out)
{
	QUERY_GPU(nvmlDeviceGetPcieLinkMaxSpeed);
	return give(out, on.gpu->pcie_generation);
}

/* In P8, the link runs at generation 1 (nvidia-smi -q of an idle L4), with its full width. */
static int64_t current_generation(const host_t *host, const target_t *on)
{
	return telemetry_of(host, on->gpu_index).performance_state == 0 ? on->gpu->pcie_generation : 1;
}

nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t device, unsigned *out)
{
	QUERY_GPU(nvmlDeviceGetCurrPcieLinkGeneration);
	return give(out, current_generation(host, &on));
}

nvmlReturn_t nvmlDeviceGetPcieSpeed(nvmlDevice_t device, unsigned *out)
{
	static const int64_t mbps[] = { 0, 2500, 5000, 8000, 16000, 32000, 64000 };
	QUERY_GPU(nvmlDeviceGetPcieSpeed);
	int64_t generation = current_generation(host, &on);
	return give(out, generation > 0 && generation < (int64_t)(sizeof mbps / sizeof *mbps) ? mbps[generation] : UNKNOWN);
}
