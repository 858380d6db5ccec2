/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Settings that an administrator can change: persistence mode, compute mode, power limit.
 */
#include "call.h"
#include "telemetry.h"

nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, unsigned *mode)
{
	QUERY_GPU(nvmlDeviceGetPersistenceMode);
	return give(mode, on.gpu->persistence_mode);
}

nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, unsigned mode)
{
	CHANGE(nvmlDeviceSetPersistenceMode);
	if (mode > 1 || on.gi)
		return NVML_ERROR_INVALID_ARGUMENT;
	on.gpu->persistence_mode = mode;
	return state_commit();
}

/* In MIG mode, each MIG device has its own compute mode. The GPU itself is always in the default mode. */
nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned *mode)
{
	QUERY(nvmlDeviceGetComputeMode);
	return give(mode, on.ci ? on.ci->compute_mode : on.gpu->mig_current ? COMPUTE_DEFAULT : on.gpu->compute_mode);
}

nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, unsigned mode)
{
	CHANGE(nvmlDeviceSetComputeMode);
	if (mode > COMPUTE_EXCLUSIVE_PROCESS)
		return NVML_ERROR_INVALID_ARGUMENT;
	/* A vGPU guest supports only the default compute mode. No document says which error the driver returns for
	 * other modes. */
	if (on.gpu->compute_mode_fixed || on.gpu->virtualization_mode == VIRTUALIZATION_VGPU)
		return NVML_ERROR_NOT_SUPPORTED;
	/* EXCLUSIVE_THREAD was removed in CUDA 8. */
	if (mode == COMPUTE_EXCLUSIVE_THREAD || (!on.ci && on.gpu->mig_current))
		return NVML_ERROR_NOT_SUPPORTED;
	if (on.ci)
		on.ci->compute_mode = mode;
	else
		on.gpu->compute_mode = mode;
	return state_commit();
}

/* The value 1 means that the GPU supports power management. */
nvmlReturn_t nvmlDeviceGetPowerManagementMode(nvmlDevice_t device, unsigned *mode)
{
	QUERY_GPU(nvmlDeviceGetPowerManagementMode);
	return give(mode, 1);
}

#define POWER_LIMIT(name, member) \
	nvmlReturn_t name(nvmlDevice_t device, unsigned *milliwatts) { QUERY_GPU(name); return give(milliwatts, on.gpu->member); }

POWER_LIMIT(nvmlDeviceGetPowerManagementLimit, power_limit_mw)
POWER_LIMIT(nvmlDeviceGetEnforcedPowerLimit, power_limit_mw)
POWER_LIMIT(nvmlDeviceGetPowerManagementDefaultLimit, power_default_mw)

nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned *min, unsigned *max)
{
	QUERY_GPU(nvmlDeviceGetPowerManagementLimitConstraints);
	if (!min || !max)
		return NVML_ERROR_INVALID_ARGUMENT;
	*min = on.gpu->power_min_mw;
	*max = on.gpu->power_max_mw;
	return NVML_SUCCESS;
}

static nvmlReturn_t set_power_limit(host_t *host, const target_t *on, unsigned milliwatts)
{
	if (on->gi)
		return NVML_ERROR_NOT_SUPPORTED;
	if (milliwatts < on->gpu->power_min_mw || milliwatts > on->gpu->power_max_mw)
		return NVML_ERROR_INVALID_ARGUMENT;
	telemetry_settle_energy(host, on->gpu);
	on->gpu->power_limit_mw = milliwatts;
	return state_commit();
}

nvmlReturn_t nvmlDeviceSetPowerManagementLimit(nvmlDevice_t device, unsigned milliwatts)
{
	CHANGE(nvmlDeviceSetPowerManagementLimit);
	return set_power_limit(host, &on, milliwatts);
}

nvmlReturn_t nvmlDeviceSetPowerManagementLimit_v2(nvmlDevice_t device, const nvmlPowerValue_v2_t *value)
{
	CHANGE(nvmlDeviceSetPowerManagementLimit_v2);
	if (!value)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (value->version != STRUCT_VERSION(nvmlPowerValue_v2_t, 2u))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	/* Scope 0 is the GPU. Scopes 1 and 2 are the module and the memory, which have no separate limits on these
	 * GPUs. */
	return value->scope == 0 ? set_power_limit(host, &on, value->milliwatts) : NVML_ERROR_NOT_SUPPORTED;
}
