/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 */
#include "load_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "load.h"

/* Returns the first position, at or after `end`, where a load's samples start, and sets `owner` to the load. Returns
 * INT32_MAX if there is none. */
static int32_t next_samples(host_t *host, int32_t end, load_t **owner)
{
	int32_t lowest = INT32_MAX;
	for (int g = 0; g < host->gpu_count; g++) {
		for (int i = -1; i < MAX_GIS; i++) {
			load_t *load = i < 0 ? &host->gpus[g].load : &host->gpus[g].gis[i].load;
			if (load->pattern == LOAD_SAMPLES && load->first_sample >= end && load->first_sample < lowest) {
				lowest = load->first_sample;
				*owner = load;
			}
		}
	}
	return lowest;
}

void load_forget_unused_samples(host_t *host)
{
	int32_t end = 0;
	load_t *load;
	while (next_samples(host, end, &load) != INT32_MAX) {
		memmove(&host->samples[end], &host->samples[load->first_sample], load->sample_count * sizeof(sample_t));
		load->first_sample = end;
		end += load->sample_count;
	}
	host->sample_count = end;
}

/* A load's keys, and the values that the text sets. */
enum { PERIOD, INTERVAL, HIGH, LOW, MEMORY_HIGH, MEMORY_LOW, POWER_HIGH, POWER_LOW, MEMORY_UTILIZATION,
       SM, OCCUPANCY, TENSOR, BANDWIDTH, KEY_COUNT };
static const char *const KEYS[KEY_COUNT] = {
	"period_seconds", "interval_seconds", "utilization_percent", "utilization_low_percent", "memory_mib", "memory_low_mib",
	"power_mw", "power_low_mw", "memory_utilization_percent",
	"sm_percent", "occupancy_percent", "tensor_percent", "bandwidth_percent",
};

static nvmlReturn_t refuse(char reason[REASON_SIZE], nvmlReturn_t result, int line, const char *key, const char *what)
{
	snprintf(reason, REASON_SIZE, "line %d, %.60s: %s", line, key, what);
	return result;
}

static nvmlReturn_t add_sample(const char *text, host_t *host, load_t *load, int64_t room_mib, int line, char reason[REASON_SIZE])
{
	sample_t sample;
	int end = 0;
	if (sscanf(text, "%f %d %d %n", &sample.utilization_percent, &sample.memory_mib, &sample.power_mw, &end) != 3 || text[end]
	    || !(sample.utilization_percent >= 0 && sample.utilization_percent <= 100) || sample.memory_mib < 0
	    || sample.power_mw < UNKNOWN)
		return refuse(reason, NVML_ERROR_INVALID_ARGUMENT, line, "sample", "percent, MiB and milliwatts (-1: follows) are needed");
	if (sample.memory_mib > room_mib)
		return refuse(reason, NVML_ERROR_INSUFFICIENT_RESOURCES, line, "sample", "more memory than there is");
	if (host->sample_count == MAX_SAMPLES)
		return refuse(reason, NVML_ERROR_INSUFFICIENT_RESOURCES, line, "sample", "the samples of all loads are more than 65536");
	host->samples[host->sample_count++] = sample;
	load->sample_count++;
	return NVML_SUCCESS;
}

static nvmlReturn_t check(const double values[KEY_COUNT], const load_t *load, int64_t room_mib, char reason[REASON_SIZE])
{
	if (load->pattern == LOAD_NONE)
		return refuse(reason, NVML_ERROR_INVALID_ARGUMENT, 1, "pattern", "use constant, square, sine or samples");
	if ((load->pattern == LOAD_SAMPLES) != (load->sample_count > 0))
		return refuse(reason, NVML_ERROR_INVALID_ARGUMENT, 1, "sample", "lines of samples belong to the pattern samples, and to it alone");
	if (values[HIGH] > 100 || values[LOW] > 100 || values[MEMORY_UTILIZATION] > 100 || values[SM] > 100 || values[OCCUPANCY] > 100
	    || values[TENSOR] > 100 || values[BANDWIDTH] > 100)
		return refuse(reason, NVML_ERROR_INVALID_ARGUMENT, 1, "percent", "more than 100");
	if (values[PERIOD] <= 0 || values[PERIOD] > 1e9 || values[INTERVAL] <= 0 || values[INTERVAL] > 1e9)
		return refuse(reason, NVML_ERROR_INVALID_ARGUMENT, 1, "seconds", "must be more than 0 and at most 1000000000");
	if (values[POWER_HIGH] > INT32_MAX || values[POWER_LOW] > INT32_MAX)
		return refuse(reason, NVML_ERROR_INVALID_ARGUMENT, 1, "power_mw", "too large");
	if (values[MEMORY_HIGH] > room_mib || values[MEMORY_LOW] > room_mib)
		return refuse(reason, NVML_ERROR_INSUFFICIENT_RESOURCES, 1, "memory_mib", "more memory than there is");
	return NVML_SUCCESS;
}

nvmlReturn_t load_read(const char *text, host_t *host, int64_t room_mib, load_t *load, char reason[REASON_SIZE])
{
	static const char *const patterns[] = { "none", "constant", "square", "sine", "samples" };
	double values[KEY_COUNT] = { 60, 1, 0, 0, 0, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, 100, 50, 50, 50 };
	char key[64], value[512];
	int line = 0;
	*load = (load_t){ .first_sample = host->sample_count };
	while ((text = configuration_line(text, &line, key, value))) {
		nvmlReturn_t result = NVML_SUCCESS;
		char *end;
		int index = 0;
		if (strcmp(key, "sample") == 0) {
			result = add_sample(value, host, load, room_mib, line, reason);
		} else if (strcmp(key, "pattern") == 0) {
			for (int i = LOAD_CONSTANT; i <= LOAD_SAMPLES; i++)
				if (strcmp(patterns[i], value) == 0)
					load->pattern = i;
		} else {
			while (index < KEY_COUNT && strcmp(KEYS[index], key) != 0)
				index++;
			if (index == KEY_COUNT)
				return refuse(reason, NVML_ERROR_INVALID_ARGUMENT, line, key, "no such key");
			values[index] = strtod(value, &end);
			if (end == value || *end || !(values[index] >= 0))
				result = refuse(reason, NVML_ERROR_INVALID_ARGUMENT, line, key, "use a number from 0");
		}
		if (result != NVML_SUCCESS)
			return result;
	}
	nvmlReturn_t result = check(values, load, room_mib, reason);
	if (result != NVML_SUCCESS)
		return result;
	load->since_ns = load_now_ns();
	load->period_ns = values[load->pattern == LOAD_SAMPLES ? INTERVAL : PERIOD] * 1e9;
	load->memory_utilization_percent = values[MEMORY_UTILIZATION];
	load->sm_percent = values[SM];
	load->occupancy_percent = values[OCCUPANCY];
	load->tensor_percent = values[TENSOR];
	load->bandwidth_percent = values[BANDWIDTH];
	load->high = (sample_t){ values[HIGH], values[MEMORY_HIGH], values[POWER_HIGH] };
	load->low = (sample_t){ values[LOW], values[MEMORY_LOW] == UNKNOWN ? values[MEMORY_HIGH] : values[MEMORY_LOW],
		values[POWER_LOW] == UNKNOWN ? values[POWER_HIGH] : values[POWER_LOW] };
	return NVML_SUCCESS;
}
