/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 */
#include "keys.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY(type, member, kind, flags, initial) { #member, kind, flags, offsetof(type, member), sizeof(((type *)0)->member), initial }
#define TEXT(type, member, flags) KEY(type, member, KEY_TEXT, flags, 0)
#define INTEGER(type, member, flags, initial) KEY(type, member, KEY_INTEGER, flags, initial)
#define SECTION(name, keys) { name, keys, sizeof keys / sizeof *keys }

static const config_key_t HOST_KEYS[] = {
	TEXT(host_t, driver_version, MANDATORY | ADJUSTABLE),
	TEXT(host_t, nvml_version, ADJUSTABLE),
	INTEGER(host_t, cuda_version, MANDATORY | ADJUSTABLE, UNKNOWN),
	TEXT(host_t, digest, ADJUSTABLE),
};

static const config_key_t GPU_KEYS[] = {
	TEXT(gpu_t, name, MANDATORY),
	TEXT(gpu_t, model, OPTIONAL),
	TEXT(gpu_t, uuid, MANDATORY),
	TEXT(gpu_t, serial, OPTIONAL),
	TEXT(gpu_t, board_part_number, OPTIONAL),
	TEXT(gpu_t, vbios_version, OPTIONAL),
	TEXT(gpu_t, gpu_part_number, OPTIONAL),
	TEXT(gpu_t, inforom_image, OPTIONAL),
	TEXT(gpu_t, inforom_oem, OPTIONAL),
	TEXT(gpu_t, inforom_ecc, OPTIONAL),
	TEXT(gpu_t, inforom_power, OPTIONAL),
	INTEGER(gpu_t, brand, OPTIONAL, 14),
	INTEGER(gpu_t, architecture, MANDATORY, UNKNOWN),
	TEXT(gpu_t, compute_capability, MANDATORY),
	TEXT(gpu_t, pci_address, MANDATORY),
	INTEGER(gpu_t, pci_device_id, MANDATORY, UNKNOWN),
	INTEGER(gpu_t, pci_subsystem_id, OPTIONAL, UNKNOWN),
	INTEGER(gpu_t, minor_number, OPTIONAL, UNKNOWN),
	INTEGER(gpu_t, numa_node, ADJUSTABLE, UNKNOWN),
	INTEGER(gpu_t, board_id, OPTIONAL, UNKNOWN),
	INTEGER(gpu_t, memory_total_mib, MANDATORY, UNKNOWN),
	INTEGER(gpu_t, memory_reserved_mib, OPTIONAL, 0),
	INTEGER(gpu_t, bar1_total_mib, OPTIONAL, UNKNOWN),
	INTEGER(gpu_t, row_remapper_banks, OPTIONAL, UNKNOWN),
	INTEGER(gpu_t, multiprocessors, MANDATORY, UNKNOWN),
	INTEGER(gpu_t, cores_per_multiprocessor, OPTIONAL, UNKNOWN),
	INTEGER(gpu_t, memory_bus_width_bits, OPTIONAL, UNKNOWN),
	INTEGER(gpu_t, ecc, OPTIONAL, 1),
	INTEGER(gpu_t, power_default_mw, MANDATORY, UNKNOWN),
	INTEGER(gpu_t, power_min_mw, MANDATORY, UNKNOWN),
	INTEGER(gpu_t, power_max_mw, MANDATORY, UNKNOWN),
	INTEGER(gpu_t, power_idle_mw, ADJUSTABLE, UNKNOWN),
	INTEGER(gpu_t, power_memory_mw, OPTIONAL, UNKNOWN),
	INTEGER(gpu_t, power_module_default_mw, OPTIONAL, UNKNOWN),
	INTEGER(gpu_t, power_module_min_mw, OPTIONAL, UNKNOWN),
	INTEGER(gpu_t, power_module_max_mw, OPTIONAL, UNKNOWN),
	INTEGER(gpu_t, power_module_idle_mw, OPTIONAL, UNKNOWN),
	INTEGER(gpu_t, clock_graphics_max_mhz, MANDATORY, UNKNOWN),
	INTEGER(gpu_t, clock_graphics_idle_mhz, OPTIONAL, UNKNOWN),
	INTEGER(gpu_t, clock_memory_max_mhz, MANDATORY, UNKNOWN),
	INTEGER(gpu_t, clock_video_max_mhz, OPTIONAL, UNKNOWN),
	INTEGER(gpu_t, clock_memory_idle_mhz, OPTIONAL, UNKNOWN),
	INTEGER(gpu_t, clock_video_idle_mhz, OPTIONAL, UNKNOWN),
	INTEGER(gpu_t, clock_graphics_application_mhz, OPTIONAL, UNKNOWN),
	KEY(gpu_t, supported_clocks, KEY_CLOCKS, OPTIONAL, 0),
	INTEGER(gpu_t, performance_state_idle, OPTIONAL, 0),
	INTEGER(gpu_t, pcie_generation, MANDATORY, UNKNOWN),
	INTEGER(gpu_t, pcie_width, MANDATORY, UNKNOWN),
	INTEGER(gpu_t, nvlink_links, OPTIONAL, 0),
	INTEGER(gpu_t, nvlink_version, OPTIONAL, UNKNOWN),
	INTEGER(gpu_t, nvlink_speed_mbps, OPTIONAL, UNKNOWN),
	INTEGER(gpu_t, c2c_links, OPTIONAL, 0),
	INTEGER(gpu_t, c2c_speed_mbps, OPTIONAL, UNKNOWN),
	KEY(gpu_t, nvlink_peers, KEY_PEERS, OPTIONAL, 0),
	INTEGER(gpu_t, temperature_idle_c, ADJUSTABLE, 32),
	INTEGER(gpu_t, temperature_max_c, OPTIONAL, 85),
	INTEGER(gpu_t, temperature_slowdown_c, OPTIONAL, 90),
	INTEGER(gpu_t, temperature_shutdown_c, OPTIONAL, 95),
	INTEGER(gpu_t, temperature_margins, OPTIONAL, 0),
	INTEGER(gpu_t, temperature_memory_idle_c, OPTIONAL, UNKNOWN),
	INTEGER(gpu_t, temperature_memory_max_c, OPTIONAL, UNKNOWN),
	INTEGER(gpu_t, module_id, OPTIONAL, UNKNOWN),
	INTEGER(gpu_t, fan_idle_percent, OPTIONAL, UNKNOWN),
	INTEGER(gpu_t, display, OPTIONAL, 0),
	INTEGER(gpu_t, mig_capable, OPTIONAL, 0),
	INTEGER(gpu_t, mig_needs_reset, ADJUSTABLE, 0),
	INTEGER(gpu_t, mig_survives_reboot, ADJUSTABLE, UNKNOWN),
	INTEGER(gpu_t, profiles_without_mig, ADJUSTABLE, 1),
	INTEGER(gpu_t, passthrough, ADJUSTABLE, 0),
	INTEGER(gpu_t, reset_refused, ADJUSTABLE, 0),
	INTEGER(gpu_t, held_by_kernel, ADJUSTABLE, 0),
	INTEGER(gpu_t, timeslicing, ADJUSTABLE, 1),
	INTEGER(gpu_t, memory_info, ADJUSTABLE, 1),
	INTEGER(gpu_t, compute_mode_fixed, ADJUSTABLE, 0),
	INTEGER(gpu_t, virtualization_mode, ADJUSTABLE, 0),
	INTEGER(gpu_t, max_mig_devices, OPTIONAL, UNKNOWN),
	INTEGER(gpu_t, compute_slices, OPTIONAL, UNKNOWN),
	INTEGER(gpu_t, placement_units, OPTIONAL, UNKNOWN),
};

_Static_assert(sizeof GPU_KEYS / sizeof *GPU_KEYS <= MAX_KEYS, "the longest section");

static const config_key_t GI_PROFILE_KEYS[] = {
	{ "enum", KEY_INTEGER, MANDATORY, offsetof(gi_profile_t, enumeration), sizeof(int64_t), UNKNOWN },
	INTEGER(gi_profile_t, id, MANDATORY, UNKNOWN),
	TEXT(gi_profile_t, name, OPTIONAL),
	INTEGER(gi_profile_t, compute_slices, MANDATORY, UNKNOWN),
	INTEGER(gi_profile_t, memory_mib, MANDATORY, UNKNOWN),
	INTEGER(gi_profile_t, multiprocessors, MANDATORY, UNKNOWN),
	INTEGER(gi_profile_t, max_instances, MANDATORY, UNKNOWN),
	INTEGER(gi_profile_t, copy_engines, OPTIONAL, 0),
	INTEGER(gi_profile_t, decoders, OPTIONAL, 0),
	INTEGER(gi_profile_t, encoders, OPTIONAL, 0),
	INTEGER(gi_profile_t, jpeg, OPTIONAL, 0),
	INTEGER(gi_profile_t, ofa, OPTIONAL, 0),
	INTEGER(gi_profile_t, p2p, OPTIONAL, 0),
	INTEGER(gi_profile_t, graphics, OPTIONAL, 0),
	KEY(gi_profile_t, placements, KEY_SPANS, MANDATORY, 0),
};

static const config_key_t CI_PROFILE_KEYS[] = {
	INTEGER(ci_profile_t, gi_slices, MANDATORY, UNKNOWN),
	{ "enum", KEY_INTEGER, MANDATORY, offsetof(ci_profile_t, enumeration), sizeof(int64_t), UNKNOWN },
	INTEGER(ci_profile_t, id, MANDATORY, UNKNOWN),
	INTEGER(ci_profile_t, slices, MANDATORY, UNKNOWN),
	INTEGER(ci_profile_t, max_instances, OPTIONAL, UNKNOWN),
	INTEGER(ci_profile_t, multiprocessors, OPTIONAL, UNKNOWN),
	KEY(ci_profile_t, placements, KEY_SPANS, MANDATORY, 0),
};

const section_t SECTION_HOST = SECTION("host", HOST_KEYS);
const section_t SECTION_GPU = SECTION("gpu", GPU_KEYS);
const section_t SECTION_GI_PROFILE = SECTION("profile", GI_PROFILE_KEYS);
const section_t SECTION_CI_PROFILE = SECTION("compute_profile", CI_PROFILE_KEYS);

const config_key_t *key_by_name(const section_t *section, const char *name)
{
	for (size_t i = 0; i < section->count; i++)
		if (strcmp(section->keys[i].name, name) == 0)
			return &section->keys[i];
	return NULL;
}

void key_defaults(const section_t *section, void *object)
{
	for (size_t i = 0; i < section->count; i++) {
		const config_key_t *key = &section->keys[i];
		char *member = (char *)object + key->offset;
		if (key->kind == KEY_INTEGER)
			*(int64_t *)member = key->initial;
		else if (key->kind == KEY_PEERS)
			for (int link = 0; link < MAX_LINKS; link++)
				((int32_t *)member)[link] = PEER_NONE;
		else
			memset(member, 0, key->size);
	}
}

bool key_parse_integer(const char *text, int64_t *number)
{
	char *end;
	bool hexadecimal = strncmp(text, "0x", 2) == 0;
	errno = 0;
	*number = strtoll(text, &end, hexadecimal ? 16 : 10);
	return errno == 0 && end != text && !*end;
}

static const char *store_spans(spans_t *spans, const char *text)
{
	int used;
	spans->count = 0;
	for (span_t at; sscanf(text, "%d:%d%n", &at.start, &at.size, &used) == 2; text += used) {
		if (spans->count == MAX_PLACEMENTS || at.start < 0 || at.size < 1 || at.start + at.size > 63)
			return "at most 16 placements within 63 units are possible";
		spans->at[spans->count++] = at;
	}
	return text[strspn(text, " ")] ? "placements are written start:size start:size ..." : NULL;
}

static const char *store_peers(int32_t peers[MAX_LINKS], const char *text)
{
	int link = 0, used;
	char word[16];
	for (; sscanf(text, " %15s%n", word, &used) == 1; text += used) {
		int64_t peer = PEER_SWITCH;
		if (link == MAX_LINKS)
			return "at most 18 links are possible";
		if (strcmp(word, "switch") != 0 && (!key_parse_integer(word, &peer) || peer < 0 || peer >= MAX_GPUS))
			return "a peer is a GPU's index or the word switch";
		peers[link++] = peer;
	}
	return NULL;
}

static const char *store_clocks(clock_ranges_t *clocks, const char *text)
{
	int used;
	clocks->count = 0;
	for (clock_range_t at; sscanf(text, "%d:%d-%d%n", &at.memory_mhz, &at.lowest_mhz, &at.highest_mhz, &used) == 3; text += used) {
		if (clocks->count == MAX_MEMORY_CLOCKS)
			return "at most 8 memory clocks are possible";
		if (at.memory_mhz < 1 || at.lowest_mhz < 1 || at.highest_mhz < at.lowest_mhz)
			return "clocks are positive, and the lowest comes first";
		clocks->at[clocks->count++] = at;
	}
	return text[strspn(text, " ")] ? "clocks are written memory:lowest-highest memory:lowest-highest ..." : NULL;
}

const char *key_store(const config_key_t *key, void *object, const char *text)
{
	char *member = (char *)object + key->offset;
	switch (key->kind) {
	case KEY_INTEGER:
		/* Negative numbers are invalid, because -1 means unknown. */
		return key_parse_integer(text, (int64_t *)member) && *(int64_t *)member >= 0 ? NULL : "use a whole number from 0";
	case KEY_TEXT:
		if (strlen(text) >= key->size)
			return "the text is too long";
		strcpy(member, text);
		return NULL;
	case KEY_SPANS:
		return store_spans((spans_t *)member, text);
	case KEY_PEERS:
		return store_peers((int32_t *)member, text);
	case KEY_CLOCKS:
		return store_clocks((clock_ranges_t *)member, text);
	}
	return "this key has no value";
}
