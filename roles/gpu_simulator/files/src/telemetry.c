/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 *
 * This model is plausible, but not measured: power rises linearly with utilization from idle to the default
 * limit. A lower limit caps power and the graphics clock. Temperature follows power. Clocks are idle
 * while nothing runs.
 */
#include "telemetry.h"

#include <math.h>

#include "clocks.h"
#include "health.h"
#include "process.h"

static int64_t memory_total_mib(const target_t *on)
{
	return on->gi ? on->gpu->gi_profiles[on->gi->profile].memory_mib : on->gpu->memory_total_mib;
}

/* Returns the memory used in a GPU instance, or on a GPU with all its instances. */
static int64_t memory_used_bytes(const host_t *host, const target_t *on)
{
	int64_t now = load_now_ns(), mib = 0;
	if (on->gi)
		mib = load_level(host, &on->gi->load, now).memory_mib;
	else if (!on->gpu->mig_current)
		mib = load_level(host, &on->gpu->load, now).memory_mib;
	else
		for (int i = 0; i < MAX_GIS; i++)
			if (on->gpu->gis[i].serial)
				mib += load_level(host, &on->gpu->gis[i].load, now).memory_mib;
	return (mib << 20) + process_memory_bytes(host, on->gpu_index, on->gi ? on->gi_id : -1);
}

framebuffer_t telemetry_framebuffer(const host_t *host, const target_t *on)
{
	framebuffer_t memory = {
		.total = (uint64_t)memory_total_mib(on) << 20,
		.reserved = on->gi ? 0 : (uint64_t)on->gpu->memory_reserved_mib << 20,
		.used = memory_used_bytes(host, on),
	};
	/* A load may request more memory than processes leave free. */
	if (memory.used > memory.total - memory.reserved)
		memory.used = memory.total - memory.reserved;
	memory.free = memory.total - memory.reserved - memory.used;
	return memory;
}

/* A load on a GPU, and the share of the GPU that it uses. */
typedef struct { const load_t *load; double share; } acting_t;

/* Lists the loads on a GPU: the GPU's own load, or in MIG mode the loads of its instances. Returns their number. */
static int acting_loads(const gpu_t *gpu, acting_t loads[MAX_GIS])
{
	int count = 0;
	if (!gpu->mig_current && gpu->load.pattern != LOAD_NONE)
		loads[count++] = (acting_t){ &gpu->load, 1 };
	for (int i = 0; gpu->mig_current && i < MAX_GIS; i++) {
		const gi_t *gi = &gpu->gis[i];
		if (gi->serial && gi->load.pattern != LOAD_NONE)
			loads[count++] = (acting_t){ &gi->load,
				(double)gpu->gi_profiles[gi->profile].compute_slices / gpu->compute_slices };
	}
	return count;
}

static double dynamic_range_mw(const gpu_t *gpu)
{
	return gpu->power_default_mw - gpu->power_idle_mw;
}

telemetry_t telemetry_of(const host_t *host, int gpu_index)
{
	const gpu_t *gpu = &host->gpus[gpu_index];
	telemetry_t t = { 0 };
	int64_t now = load_now_ns();
	double power = gpu->power_idle_mw;
	acting_t loads[MAX_GIS];
	for (int i = acting_loads(gpu, loads) - 1; i >= 0; i--) {
		const load_t *load = loads[i].load;
		double share = loads[i].share;
		level_t level = load_level(host, load, now);
		t.utilization_percent += level.utilization_percent * share;
		t.memory_utilization_percent += level.memory_utilization_percent * share;
		power += level.power_mw == UNKNOWN
			? level.utilization_percent / 100 * share * dynamic_range_mw(gpu)
			: level.power_mw - gpu->power_idle_mw * share;
	}
	t.power_capped = power > gpu->power_limit_mw;
	double cap = t.power_capped ? gpu->power_limit_mw / power : 1;
	t.power_mw = llround(power * cap);
	double warmth = dynamic_range_mw(gpu) > 0 ? (t.power_mw - gpu->power_idle_mw) / dynamic_range_mw(gpu) : 0;
	t.temperature_c = llround(gpu->temperature_idle_c
	                          + fmin(fmax(warmth, 0), 1) * (gpu->temperature_max_c - 5 - gpu->temperature_idle_c));
	if (gpu->health.temperature_c)
		t.temperature_c = gpu->health.temperature_c;
	/* According to nvml.h, a hardware slowdown reduces clocks "by a factor of 2 or more". Here, other reasons have
	 * the same effect. */
	if (gpu->health.throttle & ~REASON_SYNC_BOOST)
		cap *= 0.5;
	bool busy = t.utilization_percent > 0 || process_uses(host, gpu_index, -1, -1);
	t.idle = !busy;
	t.performance_state = busy ? 0 : gpu->performance_state_idle;
	t.clock_graphics_mhz = busy ? llround(gpu->clock_graphics_max_mhz * cap) : gpu->clock_graphics_idle_mhz;
	t.clock_memory_mhz = busy ? gpu->clock_memory_max_mhz : gpu->clock_memory_idle_mhz;
	t.clock_video_mhz = busy ? gpu->clock_video_max_mhz : gpu->clock_video_idle_mhz;
	if (t.performance_state == 0)
		clocks_limit(gpu, &t.clock_graphics_mhz, &t.clock_memory_mhz);
	/* The simulation assumes that the memory's temperature rises like the GPU's. */
	t.temperature_memory_c = gpu->temperature_memory_idle_c == UNKNOWN ? UNKNOWN
	                       : gpu->temperature_memory_idle_c + t.temperature_c - gpu->temperature_idle_c;
	return t;
}

/* The result excludes idle energy, because callers subtract two of these values. */
static double dynamic_energy_mj(const host_t *host, const gpu_t *gpu, int64_t now_ns)
{
	double energy = 0;
	acting_t loads[MAX_GIS];
	for (int i = acting_loads(gpu, loads) - 1; i >= 0; i--) {
		const load_t *load = loads[i].load;
		double share = loads[i].share;
		work_t work = load_work(host, load, now_ns);
		double t = (now_ns - load->since_ns) / 1e9;
		energy += work.states_power ? work.power - gpu->power_idle_mw * share * t
		                            : work.utilization / 100 * share * dynamic_range_mw(gpu);
	}
	return energy;
}

int64_t telemetry_energy_mj(const host_t *host, const gpu_t *gpu)
{
	int64_t now = load_now_ns(), since = gpu->energy_since_ns;
	double seconds = (now - since) / 1e9;
	double energy = gpu->power_idle_mw * seconds
	              + dynamic_energy_mj(host, gpu, now) - dynamic_energy_mj(host, gpu, since);
	return gpu->energy_mj + llround(fmin(fmax(energy, 0), gpu->power_limit_mw * seconds));
}

static void add_activity(activity_t *sum, const host_t *host, const load_t *load, double share, int64_t since_ns, int64_t now_ns)
{
	double done = (load_work(host, load, now_ns).utilization - load_work(host, load, since_ns).utilization) * share;
	sum->graphics += done;
	sum->sm += done * load->sm_percent / 100;
	sum->occupancy += done * load->occupancy_percent / 100;
	sum->tensor += done * load->tensor_percent / 100;
	sum->bandwidth += done * load->bandwidth_percent / 100;
}

static activity_t gpu_activity(const host_t *host, const gpu_t *gpu, int64_t now_ns)
{
	activity_t activity = gpu->activity;
	acting_t loads[MAX_GIS];
	for (int i = acting_loads(gpu, loads) - 1; i >= 0; i--)
		add_activity(&activity, host, loads[i].load, loads[i].share, gpu->energy_since_ns, now_ns);
	return activity;
}

static activity_t gi_activity(const host_t *host, const gpu_t *gpu, const gi_t *gi, int64_t now_ns)
{
	activity_t activity = gi->activity;
	add_activity(&activity, host, &gi->load, 1, gpu->energy_since_ns, now_ns);
	return activity;
}

activity_t telemetry_activity(const host_t *host, const target_t *on, int64_t now_ns)
{
	return on->gi ? gi_activity(host, on->gpu, on->gi, now_ns) : gpu_activity(host, on->gpu, now_ns);
}

void telemetry_settle_energy(host_t *host, gpu_t *gpu)
{
	int64_t now = load_now_ns();
	gpu->energy_mj = telemetry_energy_mj(host, gpu);
	gpu->activity = gpu_activity(host, gpu, now);
	for (int i = 0; i < MAX_GIS; i++)
		if (gpu->gis[i].serial)
			gpu->gis[i].activity = gi_activity(host, gpu, &gpu->gis[i], now);
	gpu->energy_since_ns = now;
}
