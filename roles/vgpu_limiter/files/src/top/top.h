/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * What vgpu-top shows, as read from the files of a host. It reads only, as any user that may read them.
 * Who may write the shared files may have put anything there: nothing in them is trusted.
 */
#ifndef TOP_H
#define TOP_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/quota.h"

enum { TOP_TENANTS = 1024, TOP_NAME = 24, TOP_PROBLEM = 1024 };

struct top_process {
	int64_t pid;		/* on this host; 0: not to be found out from here */
	int64_t own_pid;	/* as it sees itself: in a container another one */
	char name[TOP_NAME];
	uint64_t used[QUOTA_GPUS];	/* by the tenant's GPUs */
};

struct top_gpu {
	uint64_t used, peak, refused;	/* used: of the living processes */
	bool seated;			/* has the following from the turnstile */
	int64_t as_of_ns;		/* when that was read, here or by the agent */
	uint64_t busy_ns, held_back_ns;
	double had_percent;		/* since the sample before; below 0: not known */
};

struct top_tenant {
	char name[TENANT_NAME];
	char problem[TOP_PROBLEM];	/* "": none */
	bool has_quota;
	struct quota quota;
	struct top_gpu gpus[QUOTA_GPUS];
	int process_count;
	struct top_process *processes;
};

struct top {
	int64_t time_ns;
	int64_t agent_ns;		/* when the agent wrote what it shows; 0: no agent runs */
	int tenant_count;
	struct top_tenant *tenants;	/* by name */
};

/* The name under which its processes are counted. */
static inline const char *top_key_of(const struct top_tenant *tenant)
{
	return tenant->has_quota ? tenant->quota.counted_as : tenant->name;
}

#endif
