/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Field values: several values by number in one call (numbers: nvml.h, NVML_FI_DEV_*).
 */
#include <string.h>
#include <time.h>

#include "call.h"
#include "health.h"
#include "mig.h"
#include "telemetry.h"

enum {
	FIELD_ECC_CURRENT = 1, FIELD_ECC_PENDING = 2, FIELD_CORRECTED_VOLATILE = 3, FIELD_UNCORRECTED_AGGREGATE = 6,
	FIELD_REMAPPED_CORRECTABLE = 142, FIELD_REMAPPED_UNCORRECTABLE = 143, FIELD_REMAP_PENDING = 144, FIELD_REMAP_FAILED = 145,
	FIELD_MEMORY_TEMPERATURE = 82, FIELD_TOTAL_ENERGY = 83, FIELD_NVLINK_COUNT = 91, FIELD_NVLINK_VERSION = 166,
	FIELD_NVLINK_SPEED_0 = 84, FIELD_NVLINK_SPEED_5 = 89, FIELD_NVLINK_SPEED_COMMON = 90,
	FIELD_NVLINK_SPEED_6 = 132, FIELD_NVLINK_SPEED_11 = 137, FIELD_NVLINK_SPEED = 164,
	FIELD_REPLAYS = 94, FIELD_REPLAY_ROLLOVERS = 95, FIELD_SWITCH_LINKS = 147,
	FIELD_LINK_REPLAYS = 161, FIELD_LINK_RECOVERIES = 162, FIELD_LINK_CRC_ERRORS = 163,
	FIELD_LINK_ECC_0 = 148, FIELD_LINK_ECC_TOTAL = 160,
	FIELD_C2C_COUNT = 170, FIELD_C2C_STATUS = 171, FIELD_C2C_SPEED = 172,
	FIELD_NVLINK_STATE = 165, FIELD_RESETLESS_MIG = 184, FIELD_POWER_AVERAGE = 185, FIELD_POWER_INSTANT = 186,
	FIELD_POWER_MIN = 187, FIELD_POWER_MAX = 188, FIELD_POWER_DEFAULT = 189, FIELD_POWER_CURRENT_LIMIT = 190,
	FIELD_ENERGY = 191, FIELD_POWER_REQUESTED_LIMIT = 192, FIELD_MARGIN_SHUTDOWN = 193, FIELD_MARGIN_SLOWDOWN = 194,
	FIELD_RESET_STATUS = 226, FIELD_DRAIN_AND_RESET_STATUS = 227, FIELD_RECOVERY_ACTION = 230,
	FIELD_MARGIN_MEMORY = 195, FIELD_MARGIN_GPU = 196, FIELD_PROFILES_WITHOUT_MIG = 199,
};

/* NVML_FI_DEV_NVLINK_SPEED_* of nvml.h: one field for each of the first twelve links, one for all links, and one
 * whose scope is the link. */
static int64_t link_speed(const gpu_t *gpu, unsigned field, unsigned scope)
{
	unsigned link = scope;
	if (gpu->nvlink_links <= 0)
		return UNKNOWN;
	if (field == FIELD_NVLINK_SPEED_COMMON)
		return gpu->nvlink_speed_mbps;
	if (field >= FIELD_NVLINK_SPEED_0 && field <= FIELD_NVLINK_SPEED_5)
		link = field - FIELD_NVLINK_SPEED_0;
	else if (field >= FIELD_NVLINK_SPEED_6 && field <= FIELD_NVLINK_SPEED_11)
		link = field - FIELD_NVLINK_SPEED_6 + 6;
	if (link >= gpu->nvlink_links)
		return UNKNOWN;
	return gpu->nvlink_peers[link] == PEER_NONE ? 0 : gpu->nvlink_speed_mbps;
}

static int64_t switch_links(const gpu_t *gpu)
{
	int64_t count = 0;
	for (int i = 0; i < gpu->nvlink_links; i++)
		count += gpu->nvlink_peers[i] == PEER_SWITCH;
	return gpu->nvlink_links > 0 ? count : UNKNOWN;
}

/* Returns the distance from the maximum operating temperature. The distance is negative for higher thresholds
 * (nvidia-smi: "T.Limit"). */
static bool margin(const gpu_t *gpu, unsigned field, int64_t *out)
{
	if (!gpu->temperature_margins || (field == FIELD_MARGIN_MEMORY && gpu->temperature_memory_idle_c == UNKNOWN))
		return false;
	/* For the memory, the distance is relative to the memory's own limit. */
	*out = field == FIELD_MARGIN_SHUTDOWN ? gpu->temperature_max_c - gpu->temperature_shutdown_c
	     : field == FIELD_MARGIN_SLOWDOWN ? gpu->temperature_max_c - gpu->temperature_slowdown_c : 0;
	return true;
}

/* nvml.h: the average is "supported on Ampere (except GA100) or newer architectures". */
static bool has_average_power(const gpu_t *gpu)
{
	bool ga100 = gpu->architecture == ARCHITECTURE_AMPERE && strcmp(gpu->compute_capability, "8.0") == 0;
	return gpu->architecture >= ARCHITECTURE_AMPERE && !ga100;
}

/* A module consists of a GPU and its Grace CPU. The simulated CPU is always idle. */
static int64_t module_power(const gpu_t *gpu, unsigned field, int64_t power_mw)
{
	switch (field) {
	case FIELD_POWER_AVERAGE:
	case FIELD_POWER_INSTANT:
		return gpu->power_module_idle_mw == UNKNOWN ? UNKNOWN : gpu->power_module_idle_mw + power_mw - gpu->power_idle_mw;
	case FIELD_POWER_MIN:
		return gpu->power_module_min_mw;
	case FIELD_POWER_MAX:
		return gpu->power_module_max_mw;
	default:
		return gpu->power_module_default_mw;
	}
}

static int64_t power(const gpu_t *gpu, unsigned field, unsigned scope, int64_t power_mw)
{
	if (scope == POWER_SCOPE_MODULE)
		return module_power(gpu, field, power_mw);
	if (scope == POWER_SCOPE_MEMORY)
		return field == FIELD_POWER_AVERAGE ? gpu->power_memory_mw : UNKNOWN;
	if (scope != POWER_SCOPE_GPU)
		return UNKNOWN;
	switch (field) {
	case FIELD_POWER_AVERAGE:
		return has_average_power(gpu) ? power_mw : UNKNOWN;
	case FIELD_POWER_INSTANT:
		return power_mw;
	case FIELD_POWER_MIN:
		return gpu->power_min_mw;
	case FIELD_POWER_MAX:
		return gpu->power_max_mw;
	case FIELD_POWER_DEFAULT:
		return gpu->power_default_mw;
	default:
		return gpu->power_limit_mw;
	}
}

static bool is_power(unsigned field)
{
	return field >= FIELD_POWER_AVERAGE && field <= FIELD_POWER_REQUESTED_LIMIT && field != FIELD_ENERGY;
}

/* For power fields, the scope is a part of the board. For link fields, it is the link. */
static nvmlReturn_t figure(const host_t *host, const target_t *on, unsigned field, unsigned scope, int64_t *out)
{
	const gpu_t *gpu = on->gpu;
	if (field == FIELD_ENERGY && scope != POWER_SCOPE_GPU)
		return NVML_ERROR_NOT_SUPPORTED;
	if (is_power(field)) {
		*out = power(gpu, field, scope, telemetry_of(host, on->gpu_index).power_mw);
		return *out == UNKNOWN ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
	}
	bool ecc = field >= FIELD_CORRECTED_VOLATILE && field <= FIELD_UNCORRECTED_AGGREGATE;
	bool remapped = field >= FIELD_REMAPPED_CORRECTABLE && field <= FIELD_REMAP_FAILED;
	if ((ecc && !gpu->ecc) || (remapped && (!health_has_row_remapping(gpu) || mig_has_instances(gpu))))
		return NVML_ERROR_NOT_SUPPORTED;
	if (ecc) {
		/* The fields are ordered: corrected and uncorrected volatile counts, then corrected and uncorrected
		 * aggregate counts. */
		unsigned nth = field - FIELD_CORRECTED_VOLATILE;
		*out = health_ecc_count(gpu, nth % 2, nth / 2);
		return NVML_SUCCESS;
	}
	if (field >= FIELD_MARGIN_SHUTDOWN && field <= FIELD_MARGIN_GPU)
		return margin(gpu, field, out) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
	if ((field >= FIELD_NVLINK_SPEED_0 && field <= FIELD_NVLINK_SPEED_COMMON)
	    || (field >= FIELD_NVLINK_SPEED_6 && field <= FIELD_NVLINK_SPEED_11) || field == FIELD_NVLINK_SPEED) {
		*out = link_speed(gpu, field, scope);
		return *out == UNKNOWN ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
	}
	/* There is a field for each of the first twelve links, and one for all links. */
	if (field >= FIELD_LINK_ECC_0 && field <= FIELD_LINK_ECC_TOTAL) {
		bool known = gpu->architecture >= ARCHITECTURE_AMPERE
		             && (field == FIELD_LINK_ECC_TOTAL ? 0 : field - FIELD_LINK_ECC_0) < gpu->nvlink_links;
		*out = 0;
		return known ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
	}
	switch (field) {
	case FIELD_MEMORY_TEMPERATURE:
		*out = telemetry_of(host, on->gpu_index).temperature_memory_c;
		break;
	/* A healthy GPU needs no recovery action (T4, A100 and H100). Which action the driver reports for pending
	 * remappings is undocumented. */
	case FIELD_RESET_STATUS:
	case FIELD_DRAIN_AND_RESET_STATUS:
	case FIELD_RECOVERY_ACTION:
		*out = gpu->health.remap_pending || gpu->health.remap_failed ? UNKNOWN : 0;
		break;
	case FIELD_REPLAYS:
	case FIELD_REPLAY_ROLLOVERS:
		*out = 0;
		break;
	case FIELD_LINK_REPLAYS:
	case FIELD_LINK_RECOVERIES:
	case FIELD_LINK_CRC_ERRORS:
		*out = scope < gpu->nvlink_links ? 0 : UNKNOWN;
		break;
	case FIELD_SWITCH_LINKS:
		*out = switch_links(gpu);
		break;
	case FIELD_REMAPPED_CORRECTABLE:
		*out = gpu->health.remapped_correctable;
		break;
	case FIELD_REMAPPED_UNCORRECTABLE:
		*out = gpu->health.remapped_uncorrectable;
		break;
	case FIELD_REMAP_PENDING:
		*out = gpu->health.remap_pending;
		break;
	case FIELD_REMAP_FAILED:
		*out = gpu->health.remap_failed;
		break;
	case FIELD_ECC_CURRENT:
	case FIELD_ECC_PENDING:
		*out = gpu->ecc;
		break;
	case FIELD_TOTAL_ENERGY:
	case FIELD_ENERGY:
		*out = telemetry_energy_mj(host, gpu);
		break;
	case FIELD_NVLINK_COUNT:
		*out = gpu->nvlink_links > 0 ? gpu->nvlink_links : UNKNOWN;
		break;
	case FIELD_NVLINK_STATE:
		*out = scope < gpu->nvlink_links ? gpu->nvlink_peers[scope] != PEER_NONE : UNKNOWN;
		break;
	case FIELD_NVLINK_VERSION:
		*out = scope < gpu->nvlink_links ? gpu->nvlink_version : UNKNOWN;
		break;
	case FIELD_C2C_COUNT:
		*out = gpu->c2c_links > 0 ? gpu->c2c_links : UNKNOWN;
		break;
	case FIELD_C2C_STATUS:
		*out = scope < gpu->c2c_links ? 1 : UNKNOWN;
		break;
	case FIELD_C2C_SPEED:
		*out = scope < gpu->c2c_links ? gpu->c2c_speed_mbps : UNKNOWN;
		break;
	case FIELD_RESETLESS_MIG:
		*out = gpu->mig_capable ? !gpu->mig_needs_reset : UNKNOWN;
		break;
	case FIELD_PROFILES_WITHOUT_MIG:
		*out = gpu->mig_capable ? gpu->profiles_without_mig : UNKNOWN;
		break;
	default:
		*out = UNKNOWN;
	}
	return *out == UNKNOWN ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
	QUERY(nvmlDeviceGetFieldValues);
	if (count < 0 || !values)
		return NVML_ERROR_INVALID_ARGUMENT;
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	for (int i = 0; i < count; i++) {
		nvmlFieldValue_t *value = &values[i];
		int64_t number = 0;
		value->timestamp_us = now.tv_sec * 1000000LL + now.tv_nsec / 1000;
		value->latency_us = 0;
		value->result = on.gi ? NVML_ERROR_NOT_SUPPORTED : figure(host, &on, value->field, value->scope, &number);
		bool wide = value->field == FIELD_TOTAL_ENERGY || value->field == FIELD_ENERGY
		         || (value->field >= FIELD_CORRECTED_VOLATILE && value->field <= FIELD_UNCORRECTED_AGGREGATE);
		bool is_margin = value->field >= FIELD_MARGIN_SHUTDOWN && value->field <= FIELD_MARGIN_GPU;
		value->value_type = wide ? VALUE_ULONGLONG : is_margin ? VALUE_INT : VALUE_UINT;
		value->value.ull = value->result == NVML_SUCCESS ? number : 0;
	}
	return NVML_SUCCESS;
}
