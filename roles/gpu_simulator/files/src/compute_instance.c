/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The NVML calls about compute instances.
 */
#include <stdio.h>
#include <string.h>

#include "call.h"
#include "mig.h"
#include "process.h"

#define GI_QUERY_AS(function) \
	CALL_AS(function); \
	host_t *host READING = state_read(); \
	target_t on; \
	if ((call.result = handle_gpu_instance(host, instance, &on)) != NVML_SUCCESS) \
		return call.result
#define GI_QUERY(name) GI_QUERY_AS(F_##name)

static nvmlReturn_t profile_by_enum(const target_t *on, unsigned enumeration, unsigned engines, const ci_profile_t **profile)
{
	if (enumeration >= CI_PROFILE_COUNT || engines >= CI_ENGINE_PROFILE_COUNT)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (int i = 0; i < on->gpu->ci_profile_count; i++) {
		*profile = &on->gpu->ci_profiles[i];
		if ((*profile)->enumeration == enumeration && (*profile)->gi_slices == mig_gi_slices(on->gpu, on->gi))
			return NVML_SUCCESS;
	}
	return NVML_ERROR_NOT_SUPPORTED;
}

static int profile_by_id(const target_t *on, unsigned id)
{
	return mig_ci_profile_by_id(on->gpu, mig_gi_slices(on->gpu, on->gi), id);
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t instance, unsigned enumeration, unsigned engines,
                                                          nvmlComputeInstanceProfileInfo_t *out)
{
	GI_QUERY(nvmlGpuInstanceGetComputeInstanceProfileInfo);
	const ci_profile_t *p;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if ((call.result = profile_by_enum(&on, enumeration, engines, &p)) != NVML_SUCCESS)
		return call.result;
	const gi_profile_t *gi = &on.gpu->gi_profiles[on.gi->profile];
	*out = (nvmlComputeInstanceProfileInfo_t){ p->id, p->slices, p->max_instances,
		mig_ci_multiprocessors(on.gpu, on.gi, p), gi->copy_engines, gi->decoders, gi->encoders, gi->jpeg, gi->ofa };
	return NVML_SUCCESS;
}

/* The name is "MIG 3g.40gb" if the compute instance is the whole GPU instance, and "MIG 1c.3g.40gb" if it is a part. */
static void profile_name(const target_t *on, const ci_profile_t *profile, char name[96])
{
	const char *gi = on->gpu->gi_profiles[on->gi->profile].name;
	if (profile->slices == profile->gi_slices)
		snprintf(name, 96, "MIG %s", gi);
	else
		snprintf(name, 96, "MIG %dc.%s", (int)profile->slices, gi);
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t instance, unsigned enumeration, unsigned engines,
                                                           void *out)
{
	GI_QUERY(nvmlGpuInstanceGetComputeInstanceProfileInfoV);
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	unsigned version = *(unsigned *)out;
	if (version != STRUCT_VERSION(nvmlComputeInstanceProfileInfo_v2_t, 2u)
	    && version != STRUCT_VERSION(nvmlComputeInstanceProfileInfo_v3_t, 3u))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	const ci_profile_t *p;
	if ((call.result = profile_by_enum(&on, enumeration, engines, &p)) != NVML_SUCCESS)
		return call.result;
	const gi_profile_t *gi = &on.gpu->gi_profiles[on.gi->profile];
	/* Version 3 of the structure is version 2 with capabilities at its end. */
	nvmlComputeInstanceProfileInfo_v2_t *info = out;
	*info = (nvmlComputeInstanceProfileInfo_v2_t){ version, p->id, p->slices, p->max_instances,
		mig_ci_multiprocessors(on.gpu, on.gi, p), gi->copy_engines, gi->decoders, gi->encoders, gi->jpeg, gi->ofa, "" };
	profile_name(&on, p, info->name);
	if (version == STRUCT_VERSION(nvmlComputeInstanceProfileInfo_v3_t, 3u))
		((nvmlComputeInstanceProfileInfo_v3_t *)out)->capabilities = gi->graphics ? 1 : 0;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t instance, unsigned id, unsigned *count)
{
	GI_QUERY(nvmlGpuInstanceGetComputeInstanceRemainingCapacity);
	ROOT_ONLY;
	int profile = profile_by_id(&on, id);
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (profile < 0)
		return NVML_ERROR_NOT_SUPPORTED;
	*count = mig_ci_remaining(on.gpu, on.gi, profile);
	return NVML_SUCCESS;
}

/* The count is only an output, as for GPU instances' placements. */
nvmlReturn_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(nvmlGpuInstance_t instance, unsigned id, nvmlPlacement_t *out,
                                                                 unsigned *count)
{
	GI_QUERY(nvmlGpuInstanceGetComputeInstancePossiblePlacements);
	ROOT_ONLY;
	int profile = profile_by_id(&on, id);
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (profile < 0)
		return NVML_ERROR_NOT_SUPPORTED;
	const spans_t *places = &on.gpu->ci_profiles[profile].placements;
	*count = places->count;
	for (int i = 0; out && i < places->count; i++)
		out[i] = (nvmlPlacement_t){ places->at[i].start, places->at[i].size };
	return NVML_SUCCESS;
}

static nvmlReturn_t create(function_t function, nvmlGpuInstance_t instance, unsigned id, bool placed,
                           const nvmlPlacement_t *placement, nvmlComputeInstance_t *out)
{
	CALL_AS(function);
	ROOT_ONLY;
	host_t *host CHANGING = state_begin();
	target_t on;
	if (!host)
		return NVML_ERROR_NO_PERMISSION;
	if ((call.result = handle_gpu_instance(host, instance, &on)) != NVML_SUCCESS)
		return call.result;
	if (!out || (placed && !placement))
		return NVML_ERROR_INVALID_ARGUMENT;
	int profile = profile_by_id(&on, id), chosen = -1;
	if (profile < 0)
		return NVML_ERROR_NOT_SUPPORTED;
	const spans_t *places = &on.gpu->ci_profiles[profile].placements;
	if (!placed) {
		chosen = mig_ci_first_placement(on.gpu, on.gi, profile);
	} else {
		for (int i = 0; i < places->count; i++)
			if (places->at[i].start == (int)placement->start && places->at[i].size == (int)placement->size)
				chosen = i;
		if (chosen < 0)
			return NVML_ERROR_INVALID_ARGUMENT;
		if (!mig_ci_fits(on.gpu, on.gi, profile, places->at[chosen]))
			chosen = -1;
	}
	if (chosen < 0)
		return NVML_ERROR_INSUFFICIENT_RESOURCES;
	on.ci_id = mig_ci_create(host, on.gi, profile, places->at[chosen]);
	if (on.ci_id < 0)
		return NVML_ERROR_OPERATING_SYSTEM;
	on.ci = &on.gi->cis[on.ci_id];
	if (!(*out = handle_of_compute_instance(&on)))
		return NVML_ERROR_MEMORY;
	return state_commit();
}

nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t instance, unsigned id, nvmlComputeInstance_t *out)
{
	return create(F_nvmlGpuInstanceCreateComputeInstance, instance, id, false, NULL, out);
}

nvmlReturn_t nvmlGpuInstanceCreateComputeInstanceWithPlacement(nvmlGpuInstance_t instance, unsigned id,
                                                               const nvmlPlacement_t *placement, nvmlComputeInstance_t *out)
{
	return create(F_nvmlGpuInstanceCreateComputeInstanceWithPlacement, instance, id, true, placement, out);
}

nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t instance)
{
	CALL(nvmlComputeInstanceDestroy);
	ROOT_ONLY;
	host_t *host CHANGING = state_begin();
	target_t on;
	if (!host)
		return NVML_ERROR_NO_PERMISSION;
	if ((call.result = handle_compute_instance(host, instance, &on)) != NVML_SUCCESS)
		return call.result;
	if (process_uses(host, on.gpu_index, on.gi_id, on.ci_id))
		return NVML_ERROR_IN_USE;
	*on.ci = (ci_t){ 0 };
	return state_commit();
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t instance, unsigned id, nvmlComputeInstance_t *out,
                                                unsigned *count)
{
	GI_QUERY(nvmlGpuInstanceGetComputeInstances);
	ROOT_ONLY;
	int profile = profile_by_id(&on, id);
	if (!out || !count)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (profile < 0)
		return NVML_ERROR_NOT_SUPPORTED;
	unsigned found = 0;
	for (on.ci_id = 0; on.ci_id < MAX_CIS; on.ci_id++) {
		on.ci = &on.gi->cis[on.ci_id];
		if (on.ci->serial && on.ci->profile == profile && !(out[found++] = handle_of_compute_instance(&on)))
			return NVML_ERROR_MEMORY;
	}
	*count = found;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t instance, unsigned id, nvmlComputeInstance_t *out)
{
	GI_QUERY(nvmlGpuInstanceGetComputeInstanceById);
	ROOT_ONLY;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (id >= MAX_CIS || !on.gi->cis[id].serial)
		return NVML_ERROR_NOT_FOUND;
	on.ci_id = id;
	on.ci = &on.gi->cis[id];
	*out = handle_of_compute_instance(&on);
	return *out ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

/* Version 1 of the structure ends before the placement. */
static nvmlReturn_t info(function_t function, nvmlComputeInstance_t instance, void *out, size_t size)
{
	CALL_AS(function);
	host_t *host READING = state_read();
	target_t on;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if ((call.result = handle_compute_instance(host, instance, &on)) != NVML_SUCCESS)
		return call.result;
	nvmlComputeInstanceInfo_t whole = { handle_of_gpu(on.gpu_index), handle_of_gpu_instance(&on), on.ci_id,
		on.gpu->ci_profiles[on.ci->profile].id, { on.ci->placement.start, on.ci->placement.size } };
	memcpy(out, &whole, size);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t instance, void *out)
{
	return info(F_nvmlComputeInstanceGetInfo, instance, out, offsetof(nvmlComputeInstanceInfo_t, placement));
}

nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t instance, void *out)
{
	return info(F_nvmlComputeInstanceGetInfo_v2, instance, out, sizeof(nvmlComputeInstanceInfo_t));
}
