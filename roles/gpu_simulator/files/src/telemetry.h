/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Sensors of a GPU, derived from its loads and processes.
 */
#ifndef TELEMETRY_H
#define TELEMETRY_H

#include "handle.h"
#include "load.h"

/* Framebuffer of a GPU or a MIG device, in bytes: total = reserved + used + free. */
typedef struct { uint64_t total, reserved, used, free; } framebuffer_t;
framebuffer_t telemetry_framebuffer(const host_t *host, const target_t *target);

typedef struct {
	double utilization_percent, memory_utilization_percent;
	int64_t power_mw, temperature_c, temperature_memory_c, clock_graphics_mhz, clock_memory_mhz, clock_video_mhz;
	int64_t performance_state;
	bool power_capped, idle;
} telemetry_t;
telemetry_t telemetry_of(const host_t *host, int gpu_index);

/* Returns the energy used since counting began. */
int64_t telemetry_energy_mj(const host_t *host, const gpu_t *gpu);

/* Returns the work of a GPU or GPU instance since its creation. The work of an instance is in percent of the
 * instance. */
activity_t telemetry_activity(const host_t *host, const target_t *target, int64_t now_ns);

/* Call this before any change that affects power, so that the values before the change count for energy and work up to
 * this time. */
void telemetry_settle_energy(host_t *host, gpu_t *gpu);

#endif
