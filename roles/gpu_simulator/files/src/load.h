/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Load patterns: activity of a GPU or a GPU instance at a time.
 */
#ifndef LOAD_H
#define LOAD_H

#include "host.h"

typedef struct {
	double utilization_percent, memory_utilization_percent;
	int64_t memory_mib;
	double power_mw;		/* UNKNOWN: follows utilization */
} level_t;

/* CLOCK_BOOTTIME: the same for all processes of a host. */
int64_t load_now_ns(void);

level_t load_level(const host_t *host, const load_t *load, int64_t now_ns);

/* Integrals from the attachment to now_ns: percent * s, and mW * s of the stated power (0 when it follows). */
typedef struct { double utilization, power; bool states_power; } work_t;
work_t load_work(const host_t *host, const load_t *load, int64_t now_ns);

#endif
