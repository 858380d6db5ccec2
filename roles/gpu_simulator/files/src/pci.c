/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 */
#include "pci.h"

#include <stdio.h>
#include <string.h>

#include "call.h"

bool pci_parse(const char *text, pci_address_t *a)
{
	int end = 0;
	*a = (pci_address_t){ 0 };
	if (sscanf(text, "%8x:%2x:%2x.%1x%n", &a->domain, &a->bus, &a->device, &a->function, &end) == 4 && !text[end])
		return true;
	a->domain = 0;
	return sscanf(text, "%2x:%2x.%1x%n", &a->bus, &a->device, &a->function, &end) == 3 && !text[end];
}

bool pci_is_at(const gpu_t *gpu, const char *text)
{
	pci_address_t address, wanted;
	return pci_parse(gpu->pci_address, &address) && pci_parse(text, &wanted) && memcmp(&address, &wanted, sizeof address) == 0;
}

void pci_fill(const gpu_t *gpu, nvmlPciInfo_t *info)
{
	pci_address_t a;
	pci_parse(gpu->pci_address, &a);
	*info = (nvmlPciInfo_t){
		.domain = a.domain, .bus = a.bus, .device = a.device, .pci_device_id = gpu->pci_device_id,
		.pci_subsystem_id = gpu->pci_subsystem_id == UNKNOWN ? 0 : gpu->pci_subsystem_id,
	};
	snprintf(info->bus_id, sizeof info->bus_id, "%08X:%02X:%02X.0", a.domain, a.bus & 0xff, a.device & 0x1f);
	snprintf(info->bus_id_legacy, sizeof info->bus_id_legacy, "%04X:%02X:%02X.0", a.domain & 0xffff, a.bus & 0xff, a.device & 0x1f);
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *out)
{
	QUERY(nvmlDeviceGetPciInfo_v3);
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	pci_fill(on.gpu, out);
	return NVML_SUCCESS;
}

static nvmlReturn_t legacy(function_t function, nvmlDevice_t device, nvmlPciInfo_v2_t *out)
{
	QUERY_AS(function);
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	nvmlPciInfo_t info;
	pci_fill(on.gpu, &info);
	memcpy(out, &info, offsetof(nvmlPciInfo_v2_t, reserved));
	memset(out->reserved, 0, sizeof out->reserved);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_v2_t *out)
{
	return legacy(F_nvmlDeviceGetPciInfo, device, out);
}

nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_v2_t *out)
{
	return legacy(F_nvmlDeviceGetPciInfo_v2, device, out);
}

nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_v1_t *out)
{
	QUERY(nvmlDeviceGetPciInfoExt);
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (out->version != STRUCT_VERSION(nvmlPciInfoExt_v1_t, 1u))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	nvmlPciInfo_t info;
	pci_fill(on.gpu, &info);
	/* PCI class 03 is a display controller. Subclass 00 drives a display (VGA), subclass 02 does not (3D). */
	*out = (nvmlPciInfoExt_v1_t){ out->version, info.domain, info.bus, info.device, info.pci_device_id, info.pci_subsystem_id,
		0x03, on.gpu->display ? 0x00 : 0x02, "" };
	strcpy(out->bus_id, info.bus_id);
	return NVML_SUCCESS;
}
