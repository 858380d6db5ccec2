/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * MIG devices. A MIG device is a compute instance, presented as a device.
 */
#include "call.h"
#include "mig.h"

/* If `device` is a GPU and not a MIG device, returns SUCCESS and 0 (nvml.h). */
nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count)
{
	QUERY_GPU(nvmlDeviceGetMaxMigDeviceCount);
	/* While MIG mode is off, the number is 0, according to nvml.h and on an H200 with driver 580.159.04. */
	return give(count, on.gpu->mig_current ? on.gpu->max_mig_devices : 0);
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *out)
{
	QUERY_GPU(nvmlDeviceGetMigDeviceHandleByIndex);
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!on.gpu->mig_capable)
		return NVML_ERROR_NOT_SUPPORTED;
	if (index >= on.gpu->max_mig_devices)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!mig_device_at(on.gpu, index, &on.gi_id, &on.ci_id))
		return NVML_ERROR_NOT_FOUND;
	on.gi = &on.gpu->gis[on.gi_id];
	on.ci = &on.gi->cis[on.ci_id];
	*out = handle_of_mig_device(&on);
	return *out ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *is_mig)
{
	QUERY(nvmlDeviceIsMigDeviceHandle);
	return give(is_mig, on.ci != NULL);
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device, nvmlDevice_t *out)
{
	QUERY(nvmlDeviceGetDeviceHandleFromMigDeviceHandle);
	if (!out || !on.ci)
		return NVML_ERROR_INVALID_ARGUMENT;
	*out = handle_of_gpu(on.gpu_index);
	return *out ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned *id)
{
	QUERY(nvmlDeviceGetGpuInstanceId);
	return on.ci ? give(id, on.gi_id) : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned *id)
{
	QUERY(nvmlDeviceGetComputeInstanceId);
	return on.ci ? give(id, on.ci_id) : NVML_ERROR_INVALID_ARGUMENT;
}

static nvmlReturn_t attributes(function_t function, nvmlDevice_t device, nvmlDeviceAttributes_t *out)
{
	QUERY_AS(function);
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!on.ci)
		return NVML_ERROR_NOT_SUPPORTED;
	const gi_profile_t *gi = &on.gpu->gi_profiles[on.gi->profile];
	const ci_profile_t *ci = &on.gpu->ci_profiles[on.ci->profile];
	*out = (nvmlDeviceAttributes_t){ mig_ci_multiprocessors(on.gpu, on.gi, ci), gi->copy_engines, gi->decoders, gi->encoders,
		gi->jpeg, gi->ofa, gi->compute_slices, ci->slices, gi->memory_mib };
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *out)
{
	return attributes(F_nvmlDeviceGetAttributes, device, out);
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *out)
{
	return attributes(F_nvmlDeviceGetAttributes_v2, device, out);
}
