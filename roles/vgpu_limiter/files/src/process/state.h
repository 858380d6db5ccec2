/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The process's state. It is one page, created at the first hook call. fork clears it in the child.
 */
#ifndef STATE_H
#define STATE_H

#include "account/account.h"
#include "base/likely.h"
#include "process/quota_file.h"

struct throttle;

struct state {
	_Atomic uint32_t phase;			/* PHASE_* */
	struct mutex starting;			/* held while the state is created or the quota file is read */
	_Atomic int64_t look_again_ns;		/* time of the next check of the quota file (coarse_ns) */
	struct quota_file file;
	struct account account;
	_Atomic int unthrottled;		/* no GPU is throttled, so launches skip the throttle (throttle/throttle.c) */
	_Atomic(struct throttle *) throttle;	/* state of the throttle. NULL before the first throttled launch */
};

enum { PHASE_NEW, PHASE_OFF, PHASE_ON };

extern _Atomic(struct state *) vgpu_state_page;
/* Return the process's state, after creating it if necessary, or NULL without a tenant. */
struct state *vgpu_state_start(void);

static inline struct state *vgpu_state(void)
{
	struct state *state = atomic_load_explicit(&vgpu_state_page, memory_order_acquire);
	if (LIKELY(state)) {
		uint32_t phase = atomic_load_explicit(&state->phase, memory_order_acquire);
		if (LIKELY(phase == PHASE_ON))
			return state;
		if (phase == PHASE_OFF)
			return NULL;
	}
	return vgpu_state_start();
}

/* NULL without a tenant. */
static inline struct account *vgpu_account(void)
{
	struct state *state = vgpu_state();
	return state ? &state->account : NULL;
}

/* Return this process's quota, or NULL if nothing is limited. vgpu_quota() checks the file and NVML's report once a
 * second. vgpu_quota_now() checks neither and costs one or two loads. The first call creates the process's state,
 * also in a child of fork. */
const struct quota *vgpu_quota(void);
static inline const struct quota *vgpu_quota_now(void)
{
	struct state *state = vgpu_state();
	return state ? atomic_load_explicit(&state->file.quota, memory_order_acquire) : NULL;
}

#endif
