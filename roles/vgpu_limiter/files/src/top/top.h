/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Data that vgpu-top shows. vgpu-top reads it from the files of a host and writes nothing. Any user with read
 * permission can run it. Users may have written anything into shared files, so nothing in these files is trusted.
 */
#ifndef TOP_H
#define TOP_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/quota.h"

enum { TOP_TENANTS = 1024, TOP_NAME = 24, TOP_PROBLEM = 1024 };

struct top_process {
	int64_t pid;		/* PID on this host, 0: unknown */
	int64_t own_pid;	/* PID in the process's own PID namespace */
	char name[TOP_NAME];
	uint64_t used[QUOTA_GPUS];	/* by index of the tenant's GPUs */
};

struct top_gpu {
	uint64_t used, peak, refused;	/* `used` is in bytes, for living processes */
	bool seated;			/* the following fields are known, because the tenant has a seat at the turnstile */
	int64_t as_of_ns;		/* time of the values, as read here or sampled by the agent */
	uint64_t busy_ns, throttled_ns;
	uint64_t gave_way;		/* colocate, offline: how often launches began to wait for online tenants */
	uint64_t waits, waits_ns, late;	/* colocate, online: launches that waited for an offline kernel (formats/turnstile.h) */
	double actual_percent;		/* share since the previous sample, below 0: unknown */
};

struct top_tenant {
	char name[TENANT_NAME];
	char problem[TOP_PROBLEM];	/* empty: no problem */
	bool has_quota;
	struct quota quota;
	struct top_gpu gpus[QUOTA_GPUS];
	int process_count;
	struct top_process *processes;
};

struct top {
	int64_t time_ns;
	int64_t agent_ns;		/* time of the agent's sample, 0: no agent */
	int tenant_count;
	struct top_tenant *tenants;	/* sorted by name */
};

/* Return the name under which the tenant's processes are counted. */
static inline const char *top_key_of(const struct top_tenant *tenant)
{
	return tenant->has_quota ? tenant->quota.counted_as : tenant->name;
}

#endif
