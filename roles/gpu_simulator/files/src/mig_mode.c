/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * MIG mode, current and pending.
 */
#include "call.h"
#include "mig.h"
#include "process.h"
#include "telemetry.h"

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
	QUERY_GPU(nvmlDeviceGetMigMode);
	if (!current || !pending)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!on.gpu->mig_capable)
		return NVML_ERROR_NOT_SUPPORTED;
	*current = on.gpu->mig_current;
	*pending = on.gpu->mig_pending;
	return NVML_SUCCESS;
}

/*
 * Returns why the driver cannot activate a pending mode. nvml.h lists IN_USE (the GPU is not idle) and RESET_REQUIRED
 * (the driver cannot reset the GPU, because of passthrough). Instances count as use, because no source documents that
 * the driver destroys them.
 */
static nvmlReturn_t activation_obstacle(const host_t *host, const target_t *on)
{
	if (process_uses(host, on->gpu_index, -1, -1) || mig_has_instances(on->gpu) || on->gpu->held_by_kernel)
		return NVML_ERROR_IN_USE;
	if (on->gpu->mig_needs_reset && on->gpu->passthrough)
		return NVML_ERROR_RESET_REQUIRED;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned mode, nvmlReturn_t *activation_status)
{
	CHANGE(nvmlDeviceSetMigMode);
	if (!activation_status || mode > 1 || on.gi)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!on.gpu->mig_capable)
		return NVML_ERROR_NOT_SUPPORTED;
	*activation_status = NVML_SUCCESS;
	on.gpu->mig_pending = mode;
	if (mode != on.gpu->mig_current) {
		*activation_status = activation_obstacle(host, &on);
		if (*activation_status == NVML_SUCCESS) {
			telemetry_settle_energy(host, on.gpu);
			on.gpu->mig_current = mode;
			/* A change of the MIG mode sets the compute mode to its default (nvml.h,
			 * nvmlDeviceSetComputeMode). */
			on.gpu->compute_mode = COMPUTE_DEFAULT;
		}
	}
	return state_commit();
}
