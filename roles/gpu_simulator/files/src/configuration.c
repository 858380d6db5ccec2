/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 */
#include "configuration.h"

#include <stdio.h>
#include <string.h>

#include "clocks.h"
#include "keys.h"
#include "load.h"
#include "pci.h"

const char *configuration_line(const char *text, int *number, char key[64], char value[512])
{
	while (*text) {
		size_t length = strcspn(text, "\n");
		const char *next = text[length] ? text + length + 1 : text + length;
		++*number;
		text += strspn(text, " \t");
		key[0] = value[0] = 0;
		size_t rest = text < next ? strcspn(text, "\n") : 0;
		size_t word = strcspn(text, " \t\n");
		if (rest > 0 && *text != '#') {
			size_t gap = strspn(text + word, " \t");
			size_t size = rest > word + gap ? rest - word - gap : 0;
			snprintf(key, 64, "%.*s", (int)word, text);
			snprintf(value, 512, "%.*s", (int)size, text + word + gap);
			return next;
		}
		text = next;
	}
	return NULL;
}

/* The object to which the lines belong, and the keys seen so far. */
typedef struct {
	const section_t *section;
	void *object;
	bool seen[MAX_KEYS];
	int line;
} open_t;

static bool fail(char reason[REASON_SIZE], int line, const char *about, const char *what)
{
	snprintf(reason, REASON_SIZE, "line %d, %.100s: %s", line, about, what);
	return false;
}

static bool complete(const open_t *open, char reason[REASON_SIZE])
{
	for (size_t i = 0; open->section && i < open->section->count; i++) {
		if (open->section->keys[i].flags & MANDATORY && !open->seen[i]) {
			snprintf(reason, REASON_SIZE, "line %d, section %s: the key %s is missing", open->line, open->section->name,
			         open->section->keys[i].name);
			return false;
		}
	}
	return true;
}

/* Opens a section. Except for sections of a host or GPU, the section belongs to the last GPU. Returns NULL if there is
 * no space or no GPU, or if the section is unknown. */
static const section_t *open_section(host_t *host, const char *name, void **object)
{
	gpu_t *gpu = host->gpu_count ? &host->gpus[host->gpu_count - 1] : NULL;
	if (strcmp(name, "host") == 0) {
		*object = host;
		return &SECTION_HOST;
	}
	if (strcmp(name, "gpu") == 0 && host->gpu_count < MAX_GPUS) {
		*object = &host->gpus[host->gpu_count++];
		return &SECTION_GPU;
	}
	if (strcmp(name, "profile") == 0 && gpu && gpu->gi_profile_count < MAX_GI_PROFILES) {
		*object = &gpu->gi_profiles[gpu->gi_profile_count++];
		return &SECTION_GI_PROFILE;
	}
	if (strcmp(name, "compute_profile") == 0 && gpu && gpu->ci_profile_count < MAX_CI_PROFILES) {
		*object = &gpu->ci_profiles[gpu->ci_profile_count++];
		return &SECTION_CI_PROFILE;
	}
	return NULL;
}

static void set_unless_known(int64_t *member, int64_t value)
{
	if (*member == UNKNOWN)
		*member = value;
}

/* Sets derived values, and an unused GPU's state. */
static const char *finish_gpu(gpu_t *gpu, int index)
{
	pci_address_t address;
	int major, minor;
	if (!pci_parse(gpu->pci_address, &address))
		return "pci_address is not domain:bus:device.function";
	if (sscanf(gpu->compute_capability, "%d.%d", &major, &minor) != 2)
		return "compute_capability is not major.minor";
	if (gpu->mig_capable && (gpu->compute_slices < 1 || gpu->placement_units < 1 || !gpu->gi_profile_count))
		return "a GPU that is mig_capable needs compute_slices, placement_units and profiles";
	if (gpu->nvlink_links > MAX_LINKS)
		return "nvlink_links is more than 18";
	for (int i = 0; i < gpu->gi_profile_count; i++)
		if (gpu->gi_profiles[i].enumeration >= MAX_GI_PROFILES)
			return "the enum of a profile is more than 17";
	for (int i = 0; i < gpu->ci_profile_count; i++) {
		ci_profile_t *profile = &gpu->ci_profiles[i];
		if (profile->gi_slices < 1 || profile->placements.count == 0)
			return "a compute_profile needs gi_slices from 1 and placements";
		set_unless_known(&profile->max_instances, profile->placements.count);
	}
	set_unless_known(&gpu->minor_number, index);
	set_unless_known(&gpu->power_idle_mw, gpu->power_default_mw / 10);
	set_unless_known(&gpu->clock_graphics_idle_mhz, gpu->clock_graphics_max_mhz / 10);
	set_unless_known(&gpu->clock_memory_idle_mhz, gpu->clock_memory_max_mhz);
	set_unless_known(&gpu->clock_video_idle_mhz, gpu->clock_video_max_mhz);
	if (!gpu->supported_clocks.count)
		gpu->supported_clocks = (clock_ranges_t){ 1, { { gpu->clock_memory_max_mhz, gpu->clock_graphics_idle_mhz,
		                                                 gpu->clock_graphics_max_mhz } } };
	set_unless_known(&gpu->mig_survives_reboot, gpu->mig_needs_reset);
	set_unless_known(&gpu->max_mig_devices,
	                 gpu->compute_slices < gpu->placement_units ? gpu->compute_slices : gpu->placement_units);
	gpu->power_limit_mw = gpu->power_default_mw;
	clocks_reset(gpu);
	gpu->energy_since_ns = load_now_ns();
	return NULL;
}

static const char *finish(host_t *host)
{
	if (!host->driver_version[0])
		return "the section host is missing";
	if (!host->nvml_version[0]
	    && snprintf(host->nvml_version, sizeof host->nvml_version, "13.%s", host->driver_version) >= (int)sizeof host->nvml_version)
		return "driver_version is too long";
	for (int i = 0; i < host->gpu_count; i++) {
		const char *wrong = finish_gpu(&host->gpus[i], i);
		if (wrong)
			return wrong;
		for (int other = 0; other < i; other++)
			if (strcmp(host->gpus[i].uuid, host->gpus[other].uuid) == 0
			    || strcmp(host->gpus[i].pci_address, host->gpus[other].pci_address) == 0)
				return "two GPUs have the same uuid or pci_address";
	}
	return NULL;
}

bool configuration_read(const char *text, host_t *host, char reason[REASON_SIZE])
{
	open_t open = { 0 };
	char key[64], value[512];
	int line = 0;
	while ((text = configuration_line(text, &line, key, value))) {
		if (!*value) {
			if (!complete(&open, reason))
				return false;
			void *object;
			const section_t *section = open_section(host, key, &object);
			if (!section)
				return fail(reason, line, key, "unknown section, wrong place, or too many sections");
			key_defaults(section, object);
			open = (open_t){ .section = section, .object = object, .line = line };
			continue;
		}
		const config_key_t *known = open.section ? key_by_name(open.section, key) : NULL;
		if (!known)
			return fail(reason, line, key, open.section ? "unknown key in this section" : "a section must come first");
		const char *wrong = key_store(known, open.object, value);
		if (wrong)
			return fail(reason, line, key, wrong);
		open.seen[known - open.section->keys] = true;
	}
	if (!complete(&open, reason))
		return false;
	const char *wrong = finish(host);
	return wrong ? fail(reason, line, "the whole", wrong) : true;
}
