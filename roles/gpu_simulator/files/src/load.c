/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 */
#include "load.h"

#include <math.h>
#include <time.h>

int64_t load_now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_BOOTTIME, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* Returns where a pattern is between its low value (0) and its high value (1), t seconds after its start. */
static double height(const load_t *load, double t, double period)
{
	switch (load->pattern) {
	case LOAD_SQUARE:
		return fmod(t, period) < period / 2;
	case LOAD_SINE:
		return (1 - cos(2 * M_PI * t / period)) / 2;
	default:
		return 1;
	}
}

/* Returns the integral of `height` from 0 to t. */
static double area(const load_t *load, double t, double period)
{
	switch (load->pattern) {
	case LOAD_SQUARE:
		return floor(t / period) * period / 2 + fmin(fmod(t, period), period / 2);
	case LOAD_SINE:
		return t / 2 - period / (4 * M_PI) * sin(2 * M_PI * t / period);
	default:
		return t;
	}
}

static double seconds(int64_t ns)
{
	return (ns > 0 ? ns : 0) / 1e9;
}

static double between(double low, double high, double height)
{
	return low + (high - low) * height;
}

level_t load_level(const host_t *host, const load_t *load, int64_t now_ns)
{
	level_t level = { 0, 0, 0, UNKNOWN };
	if (load->pattern == LOAD_NONE)
		return level;
	double t = seconds(now_ns - load->since_ns), period = seconds(load->period_ns);
	sample_t low = load->low, high = load->high;
	if (load->pattern == LOAD_SAMPLES) {
		int64_t index = (int64_t)(t / period) % load->sample_count;
		low = high = host->samples[load->first_sample + index];
	}
	double at = height(load, t, period);
	level.utilization_percent = between(low.utilization_percent, high.utilization_percent, at);
	level.memory_mib = llround(between(low.memory_mib, high.memory_mib, at));
	level.power_mw = high.power_mw == UNKNOWN ? UNKNOWN : between(low.power_mw, high.power_mw, at);
	level.memory_utilization_percent = load->memory_utilization_percent == UNKNOWN
		? level.utilization_percent / 2 : load->memory_utilization_percent;
	return level;
}

static work_t samples_work(const host_t *host, const load_t *load, double t, double interval)
{
	const sample_t *samples = &host->samples[load->first_sample];
	double passed = t / interval, loops = floor(passed / load->sample_count);
	double within = passed - loops * load->sample_count;
	work_t work = { 0, 0, samples[0].power_mw != UNKNOWN };
	for (int i = 0; i < load->sample_count; i++) {
		double times = (loops + fmin(fmax(within - i, 0), 1)) * interval;
		work.utilization += samples[i].utilization_percent * times;
		work.power += (samples[i].power_mw == UNKNOWN ? 0 : samples[i].power_mw) * times;
	}
	return work;
}

work_t load_work(const host_t *host, const load_t *load, int64_t now_ns)
{
	if (load->pattern == LOAD_NONE)
		return (work_t){ 0, 0, false };
	double t = seconds(now_ns - load->since_ns), period = seconds(load->period_ns);
	if (load->pattern == LOAD_SAMPLES)
		return samples_work(host, load, t, period);
	double high = area(load, t, period), low = t - high;
	bool states = load->high.power_mw != UNKNOWN;
	return (work_t){
		load->high.utilization_percent * high + load->low.utilization_percent * low,
		states ? load->high.power_mw * high + load->low.power_mw * low : 0, states,
	};
}
