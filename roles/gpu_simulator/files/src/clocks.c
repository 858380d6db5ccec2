/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 */
#include "clocks.h"

#include "call.h"
#include "telemetry.h"

void clocks_reset(gpu_t *gpu)
{
	gpu->locked_graphics_min_mhz = gpu->locked_graphics_max_mhz = UNKNOWN;
	gpu->locked_memory_min_mhz = gpu->locked_memory_max_mhz = UNKNOWN;
	gpu->application_graphics_mhz = gpu->clock_graphics_application_mhz;
	gpu->application_memory_mhz = gpu->clock_memory_max_mhz;
}

static int64_t within(int64_t mhz, int64_t min, int64_t max, int64_t most)
{
	if (max == UNKNOWN)
		return mhz;
	if (mhz < min)
		mhz = min;
	if (mhz > max)
		mhz = max;
	return mhz > most ? most : mhz;
}

void clocks_limit(const gpu_t *gpu, int64_t *graphics_mhz, int64_t *memory_mhz)
{
	/* Application clocks limit boost clocks, unless they have their default. */
	if (gpu->application_graphics_mhz != gpu->clock_graphics_application_mhz && *graphics_mhz > gpu->application_graphics_mhz)
		*graphics_mhz = gpu->application_graphics_mhz;
	if (*memory_mhz > gpu->application_memory_mhz)
		*memory_mhz = gpu->application_memory_mhz;
	*graphics_mhz = within(*graphics_mhz, gpu->locked_graphics_min_mhz, gpu->locked_graphics_max_mhz, gpu->clock_graphics_max_mhz);
	*memory_mhz = within(*memory_mhz, gpu->locked_memory_min_mhz, gpu->locked_memory_max_mhz, gpu->clock_memory_max_mhz);
}

/* NVML_CLOCK_LIMIT_ID_* of nvml.h. These symbols replace MHz and mean the lowest clock, the clock of the power
 * limit, and the highest clock. */
static int64_t limit_mhz(unsigned given, int64_t least, int64_t usual, int64_t most)
{
	switch (given) {
	case CLOCK_LIMIT_START:
		return least;
	case CLOCK_LIMIT_TDP:
		return usual == UNKNOWN ? most : usual;
	case CLOCK_LIMIT_UNLIMITED:
		return most;
	default:
		return given;
	}
}

nvmlReturn_t nvmlDeviceSetGpuLockedClocks(nvmlDevice_t device, unsigned min, unsigned max)
{
	CHANGE(nvmlDeviceSetGpuLockedClocks);
	if (on.gi)
		return NVML_ERROR_NOT_SUPPORTED;
	const gpu_t *gpu = on.gpu;
	int64_t from = limit_mhz(min, gpu->clock_graphics_idle_mhz, gpu->clock_graphics_application_mhz, gpu->clock_graphics_max_mhz);
	int64_t to = limit_mhz(max, gpu->clock_graphics_idle_mhz, gpu->clock_graphics_application_mhz, gpu->clock_graphics_max_mhz);
	if (from > to)
		return NVML_ERROR_INVALID_ARGUMENT;
	on.gpu->locked_graphics_min_mhz = from;
	on.gpu->locked_graphics_max_mhz = to;
	return state_commit();
}

nvmlReturn_t nvmlDeviceResetGpuLockedClocks(nvmlDevice_t device)
{
	CHANGE(nvmlDeviceResetGpuLockedClocks);
	if (on.gi)
		return NVML_ERROR_NOT_SUPPORTED;
	on.gpu->locked_graphics_min_mhz = on.gpu->locked_graphics_max_mhz = UNKNOWN;
	return state_commit();
}

/* nvml.h: "For Ampere or newer fully supported devices". */
static bool locks_memory(const target_t *on)
{
	return !on->gi && on->gpu->architecture >= ARCHITECTURE_AMPERE;
}

nvmlReturn_t nvmlDeviceSetMemoryLockedClocks(nvmlDevice_t device, unsigned min, unsigned max)
{
	CHANGE(nvmlDeviceSetMemoryLockedClocks);
	if (!locks_memory(&on))
		return NVML_ERROR_NOT_SUPPORTED;
	if (min > max)
		return NVML_ERROR_INVALID_ARGUMENT;
	on.gpu->locked_memory_min_mhz = min;
	on.gpu->locked_memory_max_mhz = max;
	return state_commit();
}

nvmlReturn_t nvmlDeviceResetMemoryLockedClocks(nvmlDevice_t device)
{
	CHANGE(nvmlDeviceResetMemoryLockedClocks);
	if (!locks_memory(&on))
		return NVML_ERROR_NOT_SUPPORTED;
	on.gpu->locked_memory_min_mhz = on.gpu->locked_memory_max_mhz = UNKNOWN;
	return state_commit();
}

/*
 * Steps of graphics clocks, counted from the highest clock down. The step is 15 MHz (supported clocks of boards from T4
 * to GB200, github.com/NVIDIA/k8s-test-infra tests/e2e/go/assertions/nvidiasmi/testdata/hardware). It is 7.5 MHz on
 * Blackwell, and on Volta, whose boards have application clocks of 1245, 1290 and 1312 MHz. Halves are truncated: 2062,
 * 2055, 2047.
 */
static int64_t graphics_clock(const gpu_t *gpu, const clock_range_t *range, unsigned nth)
{
	bool fine = gpu->architecture < ARCHITECTURE_TURING || gpu->architecture >= ARCHITECTURE_BLACKWELL;
	int64_t halves = 2 * (int64_t)range->highest_mhz, step = fine ? 15 : 30;
	return (halves + ((halves + 1) % 15 == 0) - nth * step) / 2;
}

static const clock_range_t *clocks_beside(const gpu_t *gpu, int64_t memory_mhz)
{
	for (int i = 0; i < gpu->supported_clocks.count; i++)
		if (gpu->supported_clocks.at[i].memory_mhz == memory_mhz)
			return &gpu->supported_clocks.at[i];
	return NULL;
}

static bool is_supported(const gpu_t *gpu, int64_t memory_mhz, int64_t graphics_mhz)
{
	const clock_range_t *range = clocks_beside(gpu, memory_mhz);
	int64_t mhz;
	if (!range)
		return false;
	for (unsigned nth = 0; (mhz = graphics_clock(gpu, range, nth)) >= range->lowest_mhz; nth++)
		if (mhz == graphics_mhz)
			return true;
	return false;
}

nvmlReturn_t nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, unsigned *count, unsigned *mhz)
{
	QUERY_GPU(nvmlDeviceGetSupportedMemoryClocks);
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	const clock_ranges_t *ranges = &on.gpu->supported_clocks;
	nvmlReturn_t result = give_list(count, ranges->count, mhz);
	for (int i = 0; result == NVML_SUCCESS && i < ranges->count; i++)
		mhz[i] = ranges->at[i].memory_mhz;
	return result;
}

nvmlReturn_t nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, unsigned memory, unsigned *count, unsigned *mhz)
{
	QUERY_GPU(nvmlDeviceGetSupportedGraphicsClocks);
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	const clock_range_t *range = clocks_beside(on.gpu, memory);
	unsigned found = 0;
	if (!range)
		return NVML_ERROR_NOT_FOUND;
	while (graphics_clock(on.gpu, range, found) >= range->lowest_mhz)
		found++;
	nvmlReturn_t result = give_list(count, found, mhz);
	for (unsigned i = 0; result == NVML_SUCCESS && i < found; i++)
		mhz[i] = graphics_clock(on.gpu, range, i);
	return result;
}

nvmlReturn_t nvmlDeviceSetApplicationsClocks(nvmlDevice_t device, unsigned memory, unsigned graphics)
{
	CHANGE(nvmlDeviceSetApplicationsClocks);
	if (on.gi || on.gpu->clock_graphics_application_mhz == UNKNOWN)
		return NVML_ERROR_NOT_SUPPORTED;
	if (!is_supported(on.gpu, memory, graphics))
		return NVML_ERROR_INVALID_ARGUMENT;
	on.gpu->application_graphics_mhz = graphics;
	on.gpu->application_memory_mhz = memory;
	return state_commit();
}

nvmlReturn_t nvmlDeviceResetApplicationsClocks(nvmlDevice_t device)
{
	CHANGE(nvmlDeviceResetApplicationsClocks);
	if (on.gi || on.gpu->clock_graphics_application_mhz == UNKNOWN)
		return NVML_ERROR_NOT_SUPPORTED;
	on.gpu->application_graphics_mhz = on.gpu->clock_graphics_application_mhz;
	on.gpu->application_memory_mhz = on.gpu->clock_memory_max_mhz;
	return state_commit();
}

static int64_t current_mhz(const host_t *host, const target_t *on, unsigned kind)
{
	telemetry_t now = telemetry_of(host, on->gpu_index);
	return kind == CLOCK_KIND_MEMORY ? now.clock_memory_mhz : kind == CLOCK_KIND_VIDEO ? now.clock_video_mhz : now.clock_graphics_mhz;
}

static int64_t highest_mhz(const gpu_t *gpu, unsigned kind)
{
	return kind == CLOCK_KIND_MEMORY ? gpu->clock_memory_max_mhz
	     : kind == CLOCK_KIND_VIDEO ? gpu->clock_video_max_mhz : gpu->clock_graphics_max_mhz;
}

static int64_t application_mhz(unsigned kind, int64_t graphics, int64_t memory)
{
	if (graphics == UNKNOWN || kind == CLOCK_KIND_VIDEO)
		return UNKNOWN;
	return kind == CLOCK_KIND_MEMORY ? memory : graphics;
}

static nvmlReturn_t clock_of(function_t function, nvmlDevice_t device, unsigned kind, unsigned id, unsigned *mhz)
{
	QUERY_GPU_AS(function);
	if (kind > CLOCK_KIND_VIDEO || id > CLOCK_CUSTOMER_BOOST)
		return NVML_ERROR_INVALID_ARGUMENT;
	switch (id) {
	case CLOCK_CURRENT:
		return give(mhz, current_mhz(host, &on, kind));
	case CLOCK_APPLICATION:
		return give(mhz, application_mhz(kind, on.gpu->application_graphics_mhz, on.gpu->application_memory_mhz));
	case CLOCK_APPLICATION_DEFAULT:
		return give(mhz, application_mhz(kind, on.gpu->clock_graphics_application_mhz, on.gpu->clock_memory_max_mhz));
	default:
		/* An H200 with driver 580.159.04 reports this clock for graphics and SMs, but not for memory and video. */
		return give(mhz, kind == CLOCK_KIND_GRAPHICS || kind == CLOCK_KIND_SM ? on.gpu->clock_graphics_max_mhz : UNKNOWN);
	}
}

nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, unsigned kind, unsigned id, unsigned *mhz)
{
	return clock_of(F_nvmlDeviceGetClock, device, kind, id, mhz);
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned kind, unsigned *mhz)
{
	return clock_of(F_nvmlDeviceGetClockInfo, device, kind, CLOCK_CURRENT, mhz);
}

nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, unsigned kind, unsigned *mhz)
{
	return clock_of(F_nvmlDeviceGetApplicationsClock, device, kind, CLOCK_APPLICATION, mhz);
}

nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, unsigned kind, unsigned *mhz)
{
	return clock_of(F_nvmlDeviceGetDefaultApplicationsClock, device, kind, CLOCK_APPLICATION_DEFAULT, mhz);
}

nvmlReturn_t nvmlDeviceGetMaxCustomerBoostClock(nvmlDevice_t device, unsigned kind, unsigned *mhz)
{
	return clock_of(F_nvmlDeviceGetMaxCustomerBoostClock, device, kind, CLOCK_CUSTOMER_BOOST, mhz);
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned kind, unsigned *mhz)
{
	QUERY_GPU(nvmlDeviceGetMaxClockInfo);
	return kind > CLOCK_KIND_VIDEO ? NVML_ERROR_INVALID_ARGUMENT : give(mhz, highest_mhz(on.gpu, kind));
}
