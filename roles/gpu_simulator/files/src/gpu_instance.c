/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The NVML calls about GPU instances.
 */
#include <stdio.h>

#include "call.h"
#include "mig.h"
#include "process.h"
#include "telemetry.h"

/* Clients can query profiles and placements while MIG mode is off, unless the driver is too old (field 199). */
static nvmlReturn_t profiles_are_known(const gpu_t *gpu)
{
	return gpu->mig_capable && (gpu->mig_current || gpu->profiles_without_mig) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

static nvmlReturn_t profile_by_enum(const gpu_t *gpu, unsigned enumeration, const gi_profile_t **profile)
{
	if (enumeration >= GI_PROFILE_COUNT)
		return NVML_ERROR_INVALID_ARGUMENT;
	nvmlReturn_t result = profiles_are_known(gpu);
	if (result != NVML_SUCCESS)
		return result;
	for (int i = 0; i < gpu->gi_profile_count; i++) {
		*profile = &gpu->gi_profiles[i];
		if ((*profile)->enumeration == enumeration)
			return NVML_SUCCESS;
	}
	return NVML_ERROR_NOT_SUPPORTED;
}

static nvmlReturn_t profile_by_id(const gpu_t *gpu, unsigned id, int *index)
{
	nvmlReturn_t result = profiles_are_known(gpu);
	if (result != NVML_SUCCESS)
		return result;
	*index = mig_gi_profile_by_id(gpu, id);
	return *index < 0 ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned enumeration, nvmlGpuInstanceProfileInfo_t *out)
{
	QUERY_GPU(nvmlDeviceGetGpuInstanceProfileInfo);
	const gi_profile_t *p;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if ((call.result = profile_by_enum(on.gpu, enumeration, &p)) != NVML_SUCCESS)
		return call.result;
	*out = (nvmlGpuInstanceProfileInfo_t){ p->id, p->p2p, p->compute_slices, p->max_instances, p->multiprocessors,
		p->copy_engines, p->decoders, p->encoders, p->jpeg, p->ofa, p->memory_mib };
	return NVML_SUCCESS;
}

/* Copies the driver's name for a profile, as nvidia-smi prints it: "MIG 1g.10gb". */
static void copy_name(char name[96], const gi_profile_t *profile)
{
	snprintf(name, 96, "MIG %s", profile->name);
}

/* Fills one of the versioned structures. `out` begins with the version word, which identifies the structure. */
static nvmlReturn_t give_profile(const gi_profile_t *p, void *out)
{
	unsigned version = *(unsigned *)out;
	if (version == STRUCT_VERSION(nvmlGpuInstanceProfileInfo_v2_t, 2u)) {
		nvmlGpuInstanceProfileInfo_v2_t *info = out;
		*info = (nvmlGpuInstanceProfileInfo_v2_t){ version, p->id, p->p2p, p->compute_slices, p->max_instances,
			p->multiprocessors, p->copy_engines, p->decoders, p->encoders, p->jpeg, p->ofa, p->memory_mib, "" };
		copy_name(info->name, p);
	} else {
		nvmlGpuInstanceProfileInfo_v3_t *info = out;
		*info = (nvmlGpuInstanceProfileInfo_v3_t){ version, p->id, p->compute_slices, p->max_instances,
			p->multiprocessors, p->copy_engines, p->decoders, p->encoders, p->jpeg, p->ofa, p->memory_mib, "",
			(p->p2p ? PROFILE_CAPABILITY_P2P : 0) | (p->graphics ? PROFILE_CAPABILITY_GRAPHICS : 0) };
		copy_name(info->name, p);
	}
	return NVML_SUCCESS;
}

static bool is_profile_version(const void *info)
{
	unsigned version = *(const unsigned *)info;
	return version == STRUCT_VERSION(nvmlGpuInstanceProfileInfo_v2_t, 2u)
	    || version == STRUCT_VERSION(nvmlGpuInstanceProfileInfo_v3_t, 3u);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned enumeration, void *out)
{
	QUERY_GPU(nvmlDeviceGetGpuInstanceProfileInfoV);
	const gi_profile_t *profile;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!is_profile_version(out))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	call.result = profile_by_enum(on.gpu, enumeration, &profile);
	return call.result != NVML_SUCCESS ? call.result : give_profile(profile, out);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, unsigned id, void *out)
{
	QUERY_GPU(nvmlDeviceGetGpuInstanceProfileInfoByIdV);
	int profile;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!is_profile_version(out))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	call.result = profile_by_id(on.gpu, id, &profile);
	return call.result != NVML_SUCCESS ? call.result : give_profile(&on.gpu->gi_profiles[profile], out);
}

/*
 * In nvml.h, a NULL buffer queries the number of placements, and any other buffer "must be large enough". The count is
 * only an output, because nvidia-smi 450 and 460 pass a count that they did not set.
 */
static nvmlReturn_t possible_placements(function_t function, nvmlDevice_t device, unsigned id, nvmlPlacement_t *out, unsigned *count)
{
	QUERY_GPU_AS(function);
	ROOT_ONLY;
	int profile;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	if ((call.result = profile_by_id(on.gpu, id, &profile)) != NVML_SUCCESS)
		return call.result;
	const spans_t *places = &on.gpu->gi_profiles[profile].placements;
	*count = places->count;
	for (int i = 0; out && i < places->count; i++)
		out[i] = (nvmlPlacement_t){ places->at[i].start, places->at[i].size };
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements(nvmlDevice_t device, unsigned id, nvmlPlacement_t *out, unsigned *count)
{
	return possible_placements(F_nvmlDeviceGetGpuInstancePossiblePlacements, device, id, out, count);
}

nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned id, nvmlPlacement_t *out, unsigned *count)
{
	return possible_placements(F_nvmlDeviceGetGpuInstancePossiblePlacements_v2, device, id, out, count);
}

/*
 * While MIG mode is off, the function returns NOT_SUPPORTED if clients cannot query profiles (nvml.h). If they can,
 * nvidia-smi 550 calls this function too, and an error would end its output. An H200 with driver 580.159.04 then
 * reports each profile's maximum.
 */
nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned id, unsigned *count)
{
	QUERY_GPU(nvmlDeviceGetGpuInstanceRemainingCapacity);
	ROOT_ONLY;
	int profile;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	if ((call.result = profile_by_id(on.gpu, id, &profile)) != NVML_SUCCESS)
		return call.result;
	*count = mig_gi_remaining(on.gpu, profile);
	return NVML_SUCCESS;
}

static nvmlReturn_t create(function_t function, nvmlDevice_t device, unsigned id, bool placed, const nvmlPlacement_t *placement,
                           nvmlGpuInstance_t *out)
{
	CHANGE_AS(function);
	if (!out || (placed && !placement) || on.gi)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!on.gpu->mig_current)
		return NVML_ERROR_NOT_SUPPORTED;
	int profile = mig_gi_profile_by_id(on.gpu, id), chosen = -1;
	if (profile < 0)
		return NVML_ERROR_NOT_SUPPORTED;
	const spans_t *places = &on.gpu->gi_profiles[profile].placements;
	if (!placed) {
		chosen = mig_gi_best_placement(on.gpu, profile);
	} else {
		for (int i = 0; i < places->count; i++)
			if (places->at[i].start == (int)placement->start && places->at[i].size == (int)placement->size)
				chosen = i;
		if (chosen < 0)
			return NVML_ERROR_INVALID_ARGUMENT;
		if (!mig_gi_fits(on.gpu, profile, places->at[chosen]))
			chosen = -1;
	}
	if (chosen < 0)
		return NVML_ERROR_INSUFFICIENT_RESOURCES;
	on.gi_id = mig_gi_create(host, on.gpu, profile, places->at[chosen]);
	on.gi = &on.gpu->gis[on.gi_id];
	if (!(*out = handle_of_gpu_instance(&on)))
		return NVML_ERROR_MEMORY;
	return state_commit();
}

nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *out)
{
	return create(F_nvmlDeviceCreateGpuInstance, device, id, false, NULL, out);
}

nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned id, const nvmlPlacement_t *placement,
                                                      nvmlGpuInstance_t *out)
{
	return create(F_nvmlDeviceCreateGpuInstanceWithPlacement, device, id, true, placement, out);
}

nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance)
{
	CALL(nvmlGpuInstanceDestroy);
	ROOT_ONLY;
	host_t *host CHANGING = state_begin();
	target_t on;
	if (!host)
		return NVML_ERROR_NO_PERMISSION;
	if ((call.result = handle_gpu_instance(host, instance, &on)) != NVML_SUCCESS)
		return call.result;
	if (mig_gi_has_compute_instances(on.gi) || process_uses(host, on.gpu_index, on.gi_id, -1))
		return NVML_ERROR_IN_USE;
	telemetry_settle_energy(host, on.gpu);
	*on.gi = (gi_t){ 0 };
	return state_commit();
}

/*
 * According to nvml.h, the caller's buffer must hold all instances of the profile (its instance count). While MIG mode
 * is off, there are no instances. An H200 with driver 580.159.04 then returns no error.
 */
nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *out, unsigned *count)
{
	QUERY_GPU(nvmlDeviceGetGpuInstances);
	ROOT_ONLY;
	if (!out || !count)
		return NVML_ERROR_INVALID_ARGUMENT;
	int profile;
	if ((call.result = profile_by_id(on.gpu, id, &profile)) != NVML_SUCCESS)
		return call.result;
	unsigned found = 0;
	for (on.gi_id = 0; on.gi_id < MAX_GIS; on.gi_id++) {
		on.gi = &on.gpu->gis[on.gi_id];
		if (on.gi->serial && on.gi->profile == profile && !(out[found++] = handle_of_gpu_instance(&on)))
			return NVML_ERROR_MEMORY;
	}
	*count = found;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *out)
{
	QUERY_GPU(nvmlDeviceGetGpuInstanceById);
	ROOT_ONLY;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!on.gpu->mig_current)
		return NVML_ERROR_NOT_SUPPORTED;
	if (id >= MAX_GIS || !on.gpu->gis[id].serial)
		return NVML_ERROR_NOT_FOUND;
	on.gi_id = id;
	on.gi = &on.gpu->gis[id];
	*out = handle_of_gpu_instance(&on);
	return *out ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *out)
{
	CALL(nvmlGpuInstanceGetInfo);
	host_t *host READING = state_read();
	target_t on;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if ((call.result = handle_gpu_instance(host, instance, &on)) != NVML_SUCCESS)
		return call.result;
	*out = (nvmlGpuInstanceInfo_t){ handle_of_gpu(on.gpu_index), on.gi_id, on.gpu->gi_profiles[on.gi->profile].id,
		{ on.gi->placement.start, on.gi->placement.size } };
	return NVML_SUCCESS;
}
