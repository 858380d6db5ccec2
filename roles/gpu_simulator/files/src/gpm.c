/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * GPM reports the activity of a GPU or a GPU instance between two samples. A sample contains the total activity since
 * the GPU was created, so the average between any two samples is exact for any load.
 */
#include <math.h>
#include <stdlib.h>

#include "call.h"
#include "telemetry.h"

/* nvmlGpmMetricId_t of nvml.h. The maximum number of metrics is the length of the longest known list (nvidia-ml-py
 * 13.615). */
enum { METRIC_GRAPHICS = 1, METRIC_SM = 2, METRIC_OCCUPANCY = 3, METRIC_TENSOR = 5, METRIC_BANDWIDTH = 10, METRICS_MAX = 477 };
enum { GPM_VERSION = 1 };

struct gpm_sample {
	bool taken;
	int gpu;
	uint64_t gi;		/* serial number of the instance, 0: the whole GPU */
	int64_t at_ns;
	activity_t activity;
};

nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support)
{
	QUERY(nvmlGpmQueryDeviceSupport);
	if (!support)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (support->version != GPM_VERSION)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	support->supported = on.gpu->architecture >= ARCHITECTURE_HOPPER;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample)
{
	CALL(nvmlGpmSampleAlloc);
	if (!sample)
		return NVML_ERROR_INVALID_ARGUMENT;
	*sample = calloc(1, sizeof **sample);
	return *sample ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample)
{
	CALL(nvmlGpmSampleFree);
	if (!sample)
		return NVML_ERROR_INVALID_ARGUMENT;
	free(sample);
	return NVML_SUCCESS;
}

static nvmlReturn_t take(const host_t *host, const target_t *on, nvmlGpmSample_t sample)
{
	if (on->gpu->architecture < ARCHITECTURE_HOPPER)
		return NVML_ERROR_NOT_SUPPORTED;
	*sample = (struct gpm_sample){ .taken = true, .gpu = on->gpu_index, .gi = on->gi ? on->gi->serial : 0,
		.at_ns = load_now_ns() };
	sample->activity = telemetry_activity(host, on, sample->at_ns);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample)
{
	QUERY_GPU(nvmlGpmSampleGet);
	return sample ? take(host, &on, sample) : NVML_ERROR_INVALID_ARGUMENT;
}

/* `device` is the GPU. The caller selects the instance by its ID, and cannot pass a MIG device. */
nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned gpu_instance, nvmlGpmSample_t sample)
{
	QUERY_GPU(nvmlGpmMigSampleGet);
	if (!sample)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!on.gpu->mig_current)
		return NVML_ERROR_NOT_SUPPORTED;
	if (gpu_instance >= MAX_GIS || !on.gpu->gis[gpu_instance].serial)
		return NVML_ERROR_NOT_FOUND;
	on.gi_id = gpu_instance;
	on.gi = &on.gpu->gis[gpu_instance];
	return take(host, &on, sample);
}

/* The library does not support metrics of PCIe and NVLink (20, 21, 60 and above), because it simulates no traffic. */
static void fill(nvmlGpmMetric_t *metric, const activity_t *from, const activity_t *to, double seconds)
{
	static const struct { unsigned id; size_t offset; const char *short_name, *long_name; } known[] = {
		{ METRIC_GRAPHICS, offsetof(activity_t, graphics), "GRAPHICS_UTIL", "Graphics utilization" },
		{ METRIC_SM, offsetof(activity_t, sm), "SM_UTIL", "SM utilization" },
		{ METRIC_OCCUPANCY, offsetof(activity_t, occupancy), "SM_OCCUPANCY", "SM occupancy" },
		{ METRIC_TENSOR, offsetof(activity_t, tensor), "ANY_TENSOR_UTIL", "Tensor utilization" },
		{ METRIC_BANDWIDTH, offsetof(activity_t, bandwidth), "DRAM_BW_UTIL", "DRAM bandwidth utilization" },
	};
	metric->result = NVML_ERROR_NOT_SUPPORTED;
	metric->value = 0;
	metric->info = (nvmlGpmMetricInfo_t){ 0 };
	for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
		if (known[i].id != metric->id)
			continue;
		double done = *(const double *)((const char *)to + known[i].offset) - *(const double *)((const char *)from + known[i].offset);
		metric->result = NVML_SUCCESS;
		metric->value = fmin(fmax(done / seconds, 0), 100);
		metric->info = (nvmlGpmMetricInfo_t){ known[i].short_name, known[i].long_name, "%" };
	}
}

/* The driver updates its counters every 100 ms, so nvml.h requires this distance between samples. Here, any distance
 * is valid. */
nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *request)
{
	CALL(nvmlGpmMetricsGet);
	if (!request)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (request->version != GPM_VERSION)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	const struct gpm_sample *from = request->sample1, *to = request->sample2;
	if (!from || !to || !from->taken || !to->taken || from->gpu != to->gpu || from->gi != to->gi || from->at_ns >= to->at_ns
	    || !request->count || request->count > METRICS_MAX)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned i = 0; i < request->count; i++)
		fill(&request->metrics[i], &from->activity, &to->activity, (to->at_ns - from->at_ns) / 1e9);
	return NVML_SUCCESS;
}
