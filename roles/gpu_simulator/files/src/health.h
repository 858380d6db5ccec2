/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Faults of a GPU: throttling, ECC errors and remapped rows. gpusimSet sets them.
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

/* Writes the active reasons' names, joined by commas, or "". */
void health_throttle_names(int64_t reasons, char names[128]);

/* Applies the effects that a start of the driver and a reset have: clears volatile counts and remaps pending rows. */
void health_reload(health_t *health);

/* Applies the additional effects of a reboot: ends throttling and a set temperature. */
void health_reboot(health_t *health);

/* Returns whether gpusim.h lists `key`. */
bool health_knows(const char *key);

/* Sets a key. On failure, stores the reason in *wrong. */
nvmlReturn_t health_set(gpu_t *gpu, const char *key, const char *value, const char **wrong);

bool health_has_row_remapping(const gpu_t *gpu);

/* Returns the number of errors of a kind (0 corrected, 1 uncorrected): the volatile count, or the aggregate count. */
int64_t health_ecc_count(const gpu_t *gpu, unsigned error, bool aggregate);

#endif
