/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * A process's accounting of GPU memory. The accounting starts as zeroed memory, also in a child of fork.
 */
#ifndef ACCOUNT_H
#define ACCOUNT_H

#include "account/tenant.h"
#include "tables/table.h"

enum { DEVICES = 64 };

struct account {
	struct tenant tenant;
	struct tables tables;

	/* Held during a driver call and the following update. A profiler callback (CUPTI) runs inside a driver call, on
	 * the same thread, and may call hooked functions. So the lock is recursive, and values read before a driver call
	 * are no longer valid after the call. */
	struct recursive_mutex pools;
	_Atomic bool has_pools;				/* whether any pool is or was known */
	_Atomic bool pools_gave_back;			/* set while `pools` is locked, so that the lock's holder settles the pools */
	uint64_t graph_bytes[QUOTA_GPUS];	/* bytes charged for graphs' memory, by index in the region */

	/* Used in contexts.c, by the GPU's index in the region. */
	_Atomic unsigned contexts[QUOTA_GPUS];		/* existing contexts created under a quota */
	_Atomic uint64_t context_charged[QUOTA_GPUS];	/* bytes reserved for existing contexts and for contexts being created */
	_Atomic uint64_t context_pending[QUOTA_GPUS];	/* bytes of contexts being created, which NVML cannot list yet */
	_Atomic unsigned contexts_begun, contexts_ended;	/* started and finished calls that create or destroy contexts */
	_Atomic bool has_managed;			/* managed memory exists. It counts in full wherever it is, or not at all */
	_Atomic unsigned learned;			/* bit mask of GPUs, by index, on which NVML was asked for the cost of a context */

	/* Used in nvml.c, by one thread at a time (flag `settling`). */
	_Atomic bool settling;
	bool nvml_started;
	int64_t nvml_again_ns;

	_Atomic uint32_t device_known[DEVICES];
	CUuuid device_uuid[DEVICES];
};

#endif
