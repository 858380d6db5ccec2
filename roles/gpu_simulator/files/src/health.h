/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * What is wrong with a GPU: throttling, ECC errors, remapped rows. Set from outside (gpusimSet).
 */
#ifndef HEALTH_H
#define HEALTH_H

#include "host.h"
#include "nvml_abi.h"

/* nvml.h: nvmlClocksEventReason*. */
enum {
	REASON_IDLE = 0x1, REASON_SW_POWER_CAP = 0x4, REASON_HW_SLOWDOWN = 0x8, REASON_SYNC_BOOST = 0x10, REASON_SW_THERMAL = 0x20,
	REASON_APPLICATIONS_CLOCKS = 0x2, REASON_DISPLAY_CLOCKS = 0x100, REASON_HW_THERMAL = 0x40, REASON_HW_POWER_BRAKE = 0x80,
};

/* The names of the reasons that are engaged, joined by commas; "" without any. */
void health_throttle_names(int64_t reasons, char names[128]);

/* What a load of the driver, so a reset too, does: volatile counts begin anew, and pending rows are remapped. */
void health_reload(health_t *health);

/* And what a reboot ends besides: throttling, and a temperature that was set. */
void health_reboot(health_t *health);

/* Is `key` one of those that gpusim.h lists? */
bool health_knows(const char *key);

/* Sets it. On failure *wrong is the reason. */
nvmlReturn_t health_set(gpu_t *gpu, const char *key, const char *value, const char **wrong);

bool health_has_row_remapping(const gpu_t *gpu);

/* Errors of a kind (0 corrected, 1 uncorrected) since the driver was loaded, or ever. */
int64_t health_ecc_count(const gpu_t *gpu, unsigned error, bool aggregate);

#endif
