/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * What a process keeps: one page, made when the first hook is called, which fork empties.
 */
#ifndef STATE_H
#define STATE_H

#include "account/account.h"
#include "base/likely.h"
#include "process/quota_file.h"

struct throttle;

struct state {
	_Atomic uint32_t phase;			/* PHASE_* */
	struct mutex starting;			/* held while the state is made and the quota file is read */
	_Atomic int64_t look_again_ns;		/* when to look at the file again (coarse_ns) */
	struct quota_file file;
	struct account account;
	_Atomic int unthrottled;		/* no GPU of the quota is throttled: launches pass by (throttle/throttle.c) */
	_Atomic(struct throttle *) throttle;	/* what that keeps, NULL: nothing yet */
};

enum { PHASE_NEW, PHASE_OFF, PHASE_ON };

extern _Atomic(struct state *) vgpu_state_page;
/* The process's state, made where there is none. NULL: it is no tenant's process. */
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

/* NULL: it is no tenant's process. */
static inline struct account *vgpu_account(void)
{
	struct state *state = vgpu_state();
	return state ? &state->account : NULL;
}

/* The quota of this process, NULL: passive. vgpu_quota() looks at the file once a second, and then also at what NVML says;
 * vgpu_quota_now() is one load or two and does neither. Both start the process's state when they are first called (also in a
 * child of fork). */
const struct quota *vgpu_quota(void);
static inline const struct quota *vgpu_quota_now(void)
{
	struct state *state = vgpu_state();
	return state ? atomic_load_explicit(&state->file.quota, memory_order_acquire) : NULL;
}

#endif
