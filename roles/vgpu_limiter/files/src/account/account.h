/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * A process's accounting of GPU memory. It is stored in memory that starts as zeros, also in a child of fork.
 */
#ifndef ACCOUNT_H
#define ACCOUNT_H

#include "account/tenant.h"
#include "tables/table.h"

enum { DEVICES = 64 };

struct account {
	struct tenant tenant;
	struct tables tables;

	/* Held during a driver call and the update after it. A profiler's callback (CUPTI) runs inside the driver's
	 * call on the same thread and may call hooked functions. So the lock is recursive, and values read before a
	 * driver call are not valid after it. */
	struct recursive_mutex pools;
	_Atomic bool has_pools;				/* whether pools are, or were, known */
	_Atomic bool pools_gave_back;			/* set while the lock is taken; its holder then settles the pools */
	uint64_t graph_bytes[QUOTA_GPUS];	/* bytes charged for graphs' memory, by index in the region */

	/* contexts.c, by index in the region */
	_Atomic unsigned contexts[QUOTA_GPUS];		/* existing contexts created under a quota */
	_Atomic uint64_t context_charged[QUOTA_GPUS];	/* bytes reserved for them and for contexts being created */
	_Atomic uint64_t context_pending[QUOTA_GPUS];	/* part of it for contexts being created, which NVML cannot list yet */
	_Atomic unsigned contexts_begun, contexts_ended;	/* calls that create or destroy contexts, started and finished */
	_Atomic bool has_managed;			/* managed memory, which counts in full wherever it is, or not at all */
	_Atomic unsigned learned;			/* GPUs, by index, whose context cost was requested from NVML */

	/* nvml.c, one thread at a time, by `settling` */
	_Atomic bool settling;
	bool nvml_started;
	int64_t nvml_again_ns;

	_Atomic uint32_t device_known[DEVICES];
	CUuuid device_uuid[DEVICES];
};

#endif
