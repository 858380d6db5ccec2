/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 */
#include "health.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "keys.h"

/* NVML reports a hardware slowdown together with its cause, called "indicator" in nvml.h. */
static const struct { const char *name; int64_t reasons; bool shown; } REASONS[] = {
	{ "sw_power_cap", REASON_SW_POWER_CAP, true },
	{ "hw_slowdown", REASON_HW_SLOWDOWN, true },
	{ "sync_boost", REASON_SYNC_BOOST, true },
	{ "sw_thermal", REASON_SW_THERMAL, true },
	{ "hw_thermal", REASON_HW_THERMAL | REASON_HW_SLOWDOWN, true },
	{ "hw_power_brake", REASON_HW_POWER_BRAKE | REASON_HW_SLOWDOWN, true },
	{ "thermal", REASON_SW_THERMAL, false },
	{ "power", REASON_SW_POWER_CAP, false },
	{ "off", 0, false },
	{ "0", 0, false },
};
enum { REASON_COUNT = sizeof REASONS / sizeof *REASONS };

void health_throttle_names(int64_t reasons, char names[128])
{
	names[0] = 0;
	for (int i = 0; i < REASON_COUNT; i++)
		if (REASONS[i].shown && (reasons & REASONS[i].reasons) == REASONS[i].reasons)
			snprintf(names + strlen(names), 128 - strlen(names), "%s%s", *names ? "," : "", REASONS[i].name);
}

static const char *set_throttle(health_t *health, const char *text)
{
	int64_t reasons = 0;
	while (*text) {
		size_t length = strcspn(text, ",");
		int i = 0;
		while (i < REASON_COUNT && (strlen(REASONS[i].name) != length || strncmp(REASONS[i].name, text, length) != 0))
			i++;
		if (i == REASON_COUNT)
			return "use one or more of sw_power_cap, hw_slowdown, sync_boost, sw_thermal, hw_thermal, hw_power_brake, thermal "
			       "and power, separated by commas, or off";
		reasons |= REASONS[i].reasons;
		text += length + (text[length] == ',');
	}
	health->throttle = reasons;
	return NULL;
}

enum { NEEDS_NOTHING, NEEDS_ECC, NEEDS_ROW_REMAPPING };

static const struct { const char *name; size_t offset; int64_t most; int needs; } NUMBERS[] = {
	{ "temperature_c", offsetof(health_t, temperature_c), 255, NEEDS_NOTHING },
	{ "ecc_corrected", offsetof(health_t, ecc[0].volatile_count), INT32_MAX, NEEDS_ECC },
	{ "ecc_uncorrected", offsetof(health_t, ecc[1].volatile_count), INT32_MAX, NEEDS_ECC },
	{ "remapped_rows_correctable", offsetof(health_t, remapped_correctable), INT32_MAX, NEEDS_ROW_REMAPPING },
	{ "remapped_rows_uncorrectable", offsetof(health_t, remapped_uncorrectable), INT32_MAX, NEEDS_ROW_REMAPPING },
	{ "remap_pending", offsetof(health_t, remap_pending), 1, NEEDS_ROW_REMAPPING },
	{ "remap_failed", offsetof(health_t, remap_failed), 1, NEEDS_ROW_REMAPPING },
};
enum { NUMBER_COUNT = sizeof NUMBERS / sizeof *NUMBERS };

static int number_by_name(const char *key)
{
	int i = 0;
	while (i < NUMBER_COUNT && strcmp(NUMBERS[i].name, key) != 0)
		i++;
	return i;
}

bool health_knows(const char *key)
{
	return strcmp(key, "throttle") == 0 || number_by_name(key) < NUMBER_COUNT;
}

nvmlReturn_t health_set(gpu_t *gpu, const char *key, const char *value, const char **wrong)
{
	if (strcmp(key, "throttle") == 0)
		return (*wrong = set_throttle(&gpu->health, value)) ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
	int i = number_by_name(key);
	int64_t number;
	if (NUMBERS[i].needs == NEEDS_ECC && !gpu->ecc) {
		*wrong = "this GPU has no ECC";
		return NVML_ERROR_NOT_SUPPORTED;
	}
	if (NUMBERS[i].needs == NEEDS_ROW_REMAPPING && !health_has_row_remapping(gpu)) {
		*wrong = "this GPU does not remap rows, only Ampere and later do";
		return NVML_ERROR_NOT_SUPPORTED;
	}
	if (!key_parse_integer(value, &number) || number < 0 || number > NUMBERS[i].most) {
		*wrong = NUMBERS[i].most == 1 ? "use on or off" : "use a whole number from 0, at most 255 for a temperature";
		return NVML_ERROR_INVALID_ARGUMENT;
	}
	*(int64_t *)((char *)&gpu->health + NUMBERS[i].offset) = number;
	return NVML_SUCCESS;
}

/* "Volatile counts are reset each time the driver loads". The board keeps aggregate counts for its lifetime (nvml.h,
 * nvmlEccCounterType_t). A reset applies pending remappings (nvml.h, nvmlDeviceGetRemappedRows). */
void health_reload(health_t *health)
{
	for (int error = 0; error < 2; error++) {
		health->ecc[error].before += health->ecc[error].volatile_count;
		health->ecc[error].volatile_count = 0;
	}
	health->remap_pending = 0;
}

void health_reboot(health_t *health)
{
	health_reload(health);
	health->throttle = 0;
	health->temperature_c = 0;
}

/* Row remapping exists "for Ampere or newer" in nvml.h, and in NVIDIA's table
 * docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/supported-gpus.html. Turing retires pages instead. */
bool health_has_row_remapping(const gpu_t *gpu)
{
	return gpu->architecture >= ARCHITECTURE_AMPERE;
}

int64_t health_ecc_count(const gpu_t *gpu, unsigned error, bool aggregate)
{
	return gpu->health.ecc[error].volatile_count + (aggregate ? gpu->health.ecc[error].before : 0);
}
