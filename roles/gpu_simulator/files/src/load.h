/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Load patterns. A pattern determines the activity of a GPU or a GPU instance at any time.
 */
#ifndef LOAD_H
#define LOAD_H

#include "host.h"

typedef struct {
	double utilization_percent, memory_utilization_percent;
	int64_t memory_mib;
	double power_mw;		/* UNKNOWN: follows utilization */
} level_t;

/* Returns the time of CLOCK_BOOTTIME, which is the same for all of a host's processes. */
int64_t load_now_ns(void);

level_t load_level(const host_t *host, const load_t *load, int64_t now_ns);

/* Integrals from the start of the load to now_ns: utilization in percent * s, and configured power in mW * s (0 if
 * power follows utilization). */
typedef struct { double utilization, power; bool states_power; } work_t;
work_t load_work(const host_t *host, const load_t *load, int64_t now_ns);

#endif
