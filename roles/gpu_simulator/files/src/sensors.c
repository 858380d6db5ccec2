/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * NVML queries of a GPU's current activity.
 */
#include <math.h>

#include "call.h"
#include "health.h"
#include "telemetry.h"

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *out)
{
	QUERY(nvmlDeviceGetUtilizationRates);
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	/* In MIG mode, neither the GPU nor its instances report utilization rates. */
	if (on.gpu->mig_current)
		return NVML_ERROR_NOT_SUPPORTED;
	telemetry_t now = telemetry_of(host, on.gpu_index);
	*out = (nvmlUtilization_t){ lround(now.utilization_percent), lround(now.memory_utilization_percent) };
	return NVML_SUCCESS;
}

/* Loads do not use media engines, so their utilization is 0. */
static nvmlReturn_t media_utilization(function_t function, nvmlDevice_t device, unsigned *percent, unsigned *period_us)
{
	QUERY_AS(function);
	if (!percent || !period_us)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (on.gpu->mig_current)
		return NVML_ERROR_NOT_SUPPORTED;
	*percent = 0;
	*period_us = 1000000;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned *percent, unsigned *period_us)
{
	return media_utilization(F_nvmlDeviceGetEncoderUtilization, device, percent, period_us);
}

nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned *percent, unsigned *period_us)
{
	return media_utilization(F_nvmlDeviceGetDecoderUtilization, device, percent, period_us);
}

nvmlReturn_t nvmlDeviceGetJpgUtilization(nvmlDevice_t device, unsigned *percent, unsigned *period_us)
{
	return media_utilization(F_nvmlDeviceGetJpgUtilization, device, percent, period_us);
}

nvmlReturn_t nvmlDeviceGetOfaUtilization(nvmlDevice_t device, unsigned *percent, unsigned *period_us)
{
	return media_utilization(F_nvmlDeviceGetOfaUtilization, device, percent, period_us);
}

/* The simulated host has no encoding or capturing sessions. */
static nvmlReturn_t no_sessions(function_t function, nvmlDevice_t device, unsigned *count, unsigned *fps, unsigned *latency_us)
{
	QUERY_GPU_AS(function);
	if (!count || !fps || !latency_us)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = *fps = *latency_us = 0;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEncoderStats(nvmlDevice_t device, unsigned *count, unsigned *fps, unsigned *latency_us)
{
	return no_sessions(F_nvmlDeviceGetEncoderStats, device, count, fps, latency_us);
}

nvmlReturn_t nvmlDeviceGetFBCStats(nvmlDevice_t device, nvmlFBCStats_t *out)
{
	return no_sessions(F_nvmlDeviceGetFBCStats, device, out ? &out->sessions : NULL, out ? &out->fps : NULL,
	                   out ? &out->latency_us : NULL);
}

nvmlReturn_t nvmlDeviceGetEncoderSessions(nvmlDevice_t device, unsigned *count, void *sessions)
{
	QUERY_GPU(nvmlDeviceGetEncoderSessions);
	return count ? give_list(count, 0, sessions) : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetFBCSessions(nvmlDevice_t device, unsigned *count, void *sessions)
{
	QUERY_GPU(nvmlDeviceGetFBCSessions);
	return count ? give_list(count, 0, sessions) : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out)
{
	QUERY(nvmlDeviceGetMemoryInfo);
	AGGREGATE;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!on.gpu->memory_info)
		return NVML_ERROR_NOT_SUPPORTED;
	/* Version 1 of the structure has no field for reserved memory, so reserved memory counts as used (nvml.h). */
	framebuffer_t memory = telemetry_framebuffer(host, &on);
	*out = (nvmlMemory_t){ memory.total, memory.free, memory.used + memory.reserved };
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *out)
{
	QUERY(nvmlDeviceGetMemoryInfo_v2);
	AGGREGATE;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (out->version != STRUCT_VERSION(nvmlMemory_v2_t, 2u))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (!on.gpu->memory_info)
		return NVML_ERROR_NOT_SUPPORTED;
	framebuffer_t memory = telemetry_framebuffer(host, &on);
	*out = (nvmlMemory_v2_t){ out->version, memory.total, memory.reserved, memory.free, memory.used };
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *out)
{
	QUERY(nvmlDeviceGetBAR1MemoryInfo);
	AGGREGATE;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (on.gpu->bar1_total_mib == UNKNOWN)
		return NVML_ERROR_NOT_SUPPORTED;
	uint64_t total = (uint64_t)on.gpu->bar1_total_mib << 20, used = 1 << 20;
	if (on.gi) {
		/* A MIG device has a share of the BAR1 window in proportion to its memory slices. nvidia-smi reports one MiB
		 * less than that: 32767 for half of 65536 on an A100 40 GB (github.com/XuehaiPan/nvitop/pull/8). */
		total = total * on.gi->placement.size / on.gpu->placement_units - (1 << 20);
		used = 0;
	}
	*out = (nvmlBAR1Memory_t){ total, total - used, used };
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *milliwatts)
{
	QUERY_GPU(nvmlDeviceGetPowerUsage);
	return give(milliwatts, telemetry_of(host, on.gpu_index).power_mw);
}

nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *millijoules)
{
	QUERY_GPU(nvmlDeviceGetTotalEnergyConsumption);
	if (!millijoules)
		return NVML_ERROR_INVALID_ARGUMENT;
	*millijoules = telemetry_energy_mj(host, on.gpu);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned *celsius)
{
	QUERY_GPU(nvmlDeviceGetTemperature);
	if (sensor != 0)
		return NVML_ERROR_INVALID_ARGUMENT;
	return give(celsius, telemetry_of(host, on.gpu_index).temperature_c);
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_v1_t *out)
{
	QUERY_GPU(nvmlDeviceGetTemperatureV);
	if (!out || out->sensor != 0)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (out->version != STRUCT_VERSION(nvmlTemperature_v1_t, 1u))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	out->temperature = telemetry_of(host, on.gpu_index).temperature_c;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned kind, unsigned *celsius)
{
	QUERY_GPU(nvmlDeviceGetTemperatureThreshold);
	switch (kind) {
	case THRESHOLD_SHUTDOWN:
		return give(celsius, on.gpu->temperature_shutdown_c);
	case THRESHOLD_SLOWDOWN:
		return give(celsius, on.gpu->temperature_slowdown_c);
	case THRESHOLD_MEMORY_MAX:
		return give(celsius, on.gpu->temperature_memory_max_c);
	case THRESHOLD_GPU_MAX:
		return give(celsius, on.gpu->temperature_max_c);
	default:
		return NVML_ERROR_NOT_SUPPORTED;
	}
}

/* Returns the distance of the GPU from its maximum operating temperature (nvidia-smi: "GPU T.Limit Temp"). */
nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_v1_t *out)
{
	QUERY_GPU(nvmlDeviceGetMarginTemperature);
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (out->version != STRUCT_VERSION(nvmlMarginTemperature_v1_t, 1u))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (!on.gpu->temperature_margins)
		return NVML_ERROR_NOT_SUPPORTED;
	out->celsius = on.gpu->temperature_max_c - telemetry_of(host, on.gpu_index).temperature_c;
	return NVML_SUCCESS;
}

/* Fan speed rises with the temperature. A10, A16 and A40 have no fan and report 0 %. */
nvmlReturn_t nvmlDeviceGetFanSpeed(nvmlDevice_t device, unsigned *percent)
{
	QUERY_GPU(nvmlDeviceGetFanSpeed);
	int64_t idle = on.gpu->fan_idle_percent, celsius = telemetry_of(host, on.gpu_index).temperature_c;
	return give(percent, idle > 0 && celsius > idle ? celsius : idle);
}

nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, unsigned *state)
{
	QUERY_GPU(nvmlDeviceGetPerformanceState);
	return give(state, telemetry_of(host, on.gpu_index).performance_state);
}

/* Deprecated in nvml.h. Same as the performance state. */
nvmlReturn_t nvmlDeviceGetPowerState(nvmlDevice_t device, unsigned *state)
{
	QUERY_GPU(nvmlDeviceGetPowerState);
	return give(state, telemetry_of(host, on.gpu_index).performance_state);
}

static nvmlReturn_t clocks_event_reasons(function_t function, nvmlDevice_t device, unsigned long long *reasons)
{
	QUERY_GPU_AS(function);
	if (!reasons)
		return NVML_ERROR_INVALID_ARGUMENT;
	telemetry_t now = telemetry_of(host, on.gpu_index);
	*reasons = on.gpu->health.throttle | (now.power_capped ? REASON_SW_POWER_CAP : 0);
	if (!*reasons && now.idle)
		*reasons = REASON_IDLE;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons)
{
	return clocks_event_reasons(F_nvmlDeviceGetCurrentClocksEventReasons, device, reasons);
}

nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons)
{
	return clocks_event_reasons(F_nvmlDeviceGetCurrentClocksThrottleReasons, device, reasons);
}

static nvmlReturn_t supported_clocks_event_reasons(function_t function, nvmlDevice_t device, unsigned long long *reasons)
{
	QUERY_GPU_AS(function);
	if (!reasons)
		return NVML_ERROR_INVALID_ARGUMENT;
	/* These two reasons never apply here. Every board that was checked shows them as not active (T4, A100, H100). */
	*reasons = REASON_APPLICATIONS_CLOCKS | REASON_DISPLAY_CLOCKS;
	*reasons |= REASON_IDLE | REASON_SW_POWER_CAP | REASON_HW_SLOWDOWN | REASON_SYNC_BOOST | REASON_SW_THERMAL | REASON_HW_THERMAL
	         | REASON_HW_POWER_BRAKE;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons)
{
	return supported_clocks_event_reasons(F_nvmlDeviceGetSupportedClocksEventReasons, device, reasons);
}

nvmlReturn_t nvmlDeviceGetSupportedClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons)
{
	return supported_clocks_event_reasons(F_nvmlDeviceGetSupportedClocksThrottleReasons, device, reasons);
}

/* The library simulates no traffic. Idle boards report between 0 (A100 80 GB, L4, GB200) and 869 KB/s (B200), because
 * the query itself causes traffic. */
nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, unsigned counter, unsigned *kib_per_second)
{
	QUERY_GPU(nvmlDeviceGetPcieThroughput);
	return counter > 1 ? NVML_ERROR_INVALID_ARGUMENT : give(kib_per_second, 0);
}
