/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 */
#include "boot.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clocks.h"
#include "health.h"
#include "mig.h"
#include "process.h"
#include "state.h"
#include "telemetry.h"

/* A lab host is a container. If it restarts, it keeps the kernel's boot id but gets a new PID 1. If a machine
 * restarts, it gets a new boot id too. */
bool boot_identity(char identity[128])
{
	const char *given = getenv("GPUSIM_BOOT");
	if (given && *given) {
		snprintf(identity, 128, "%s", given);
		return true;
	}
	char boot_id[64];
	unsigned long long started = process_start_ticks(1);
	FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
	bool seen = file && fscanf(file, "%63s", boot_id) == 1 && started;
	if (file)
		fclose(file);
	if (seen)
		snprintf(identity, 128, "%s %llu", boot_id, started);
	return seen;
}

void boot_restart(host_t *host, const char *identity)
{
	memset(host->processes, 0, sizeof host->processes);
	for (int i = 0; i < host->gpu_count; i++) {
		gpu_t *gpu = &host->gpus[i];
		telemetry_settle_energy(host, gpu);
		/* Instances never survive a restart (MIG User Guide, "Device Nodes and Capabilities" and "Persistence"). MIG
		 * mode survives it on Ampere. For other architectures this is a setting. */
		mig_drop_instances(gpu);
		if (gpu->mig_survives_reboot)
			gpu->mig_current = gpu->mig_pending;
		else
			gpu->mig_current = gpu->mig_pending = 0;
		gpu->load = (load_t){ .pattern = LOAD_NONE };
		gpu->compute_mode = COMPUTE_DEFAULT;
		gpu->timeslice = 0;
		gpu->persistence_mode = 0;
		gpu->power_limit_mw = gpu->power_default_mw;
		clocks_reset(gpu);
		gpu->energy_mj = 0;
		gpu->lost = 0;
		gpu->held_by_kernel = 0;
		health_reboot(&gpu->health);
	}
	host->sample_count = 0;
	snprintf(host->boot, sizeof host->boot, "%s", identity);
}

static bool is_current(const char *identity)
{
	host_t *host READING = state_read();
	return host && strcmp(host->boot, identity) == 0;
}

nvmlReturn_t boot_follow(void)
{
	char identity[128];
	if (!boot_identity(identity) || is_current(identity))
		return NVML_SUCCESS;
	host_t *host CHANGING = state_begin();
	if (!host)
		return NVML_ERROR_DRIVER_NOT_LOADED;
	/* Another client may already have applied the restart. */
	if (strcmp(host->boot, identity) == 0)
		return NVML_SUCCESS;
	boot_restart(host, identity);
	return state_commit();
}
