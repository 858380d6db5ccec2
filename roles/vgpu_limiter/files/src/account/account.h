/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * What a process keeps of its memory on GPUs. It lies in memory that is all zero at first, and again in a child of fork.
 */
#ifndef ACCOUNT_H
#define ACCOUNT_H

#include "account/tenant.h"
#include "tables/table.h"

enum { DEVICES = 64 };

struct account {
	struct tenant tenant;
	struct tables tables;

	/* Held over the driver's answer and what follows from it. A profiler's callback (CUPTI's) runs within the driver's call, on the
	 * thread that made it, and may call hooked functions: so a thread may take it again, and nothing that was read before a
	 * call to the driver may be relied on after it. */
	struct recursive_mutex pools;
	_Atomic bool has_pools;				/* some are known, or were */
	_Atomic bool pools_gave_back;			/* while a thread had the lock: it settles them when it leaves it */
	uint64_t graph_bytes[QUOTA_GPUS];	/* by place in the region: charged for the graphs' memory */

	/* contexts.c, by place in the region too */
	_Atomic unsigned contexts[QUOTA_GPUS];		/* made since there is a quota, and not gone */
	_Atomic uint64_t context_charged[QUOTA_GPUS];	/* what was reserved for them and for those that are being made */
	_Atomic uint64_t context_pending[QUOTA_GPUS];	/* of it for those: NVML cannot name that yet */
	_Atomic unsigned contexts_begun, contexts_ended;	/* calls that make or destroy some: equal while there is none */
	_Atomic bool has_managed;			/* memory that is counted in full, wherever it lies, or not at all */
	_Atomic unsigned learned;			/* GPUs, by place, of which NVML was asked for the cost of a context */

	/* nvml.c; one thread at a time, by `settling` */
	_Atomic bool settling;
	bool nvml_started;
	int64_t nvml_again_ns;

	_Atomic uint32_t device_known[DEVICES];
	CUuuid device_uuid[DEVICES];
};

#endif
