/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The process's state is in memory that the kernel clears in a child of fork (MADV_WIPEONFORK, Linux 4.14). So the
 * child has no slot, no allocations and no held lock, and creates its own state at its first hook call. The library
 * therefore needs no fork handler in the program.
 */
#include "process/state.h"

#include <errno.h>
#include <sys/mman.h>

#include "account/agent_report.h"
#include "account/settle.h"
#include "base/clock.h"
#include "base/log.h"
#include "process/identity.h"

#define LOOK_EVERY_NS NS_PER_SECOND

_Atomic(struct state *) vgpu_state_page;

static struct state *make_page(void)
{
	struct state *page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (page == MAP_FAILED)
		return NULL;
	struct state *other = NULL;
	if (madvise(page, sizeof *page, MADV_WIPEONFORK) != 0) {
		vgpu_log(LOG_ERR, "this kernel has no MADV_WIPEONFORK (Linux 4.14): no limit in this process");
		munmap(page, sizeof *page);
		return NULL;
	}
	if (atomic_compare_exchange_strong(&vgpu_state_page, &other, page))
		return page;
	munmap(page, sizeof *page);
	return other;
}

struct state *vgpu_state_start(void)
{
	/* True in most processes that load the library, which have no tenant. For them, this flag is the only cost. */
	static _Atomic bool hopeless;
	if (atomic_load_explicit(&hopeless, memory_order_relaxed))
		return NULL;
	int error = errno;
	struct state *state = atomic_load_explicit(&vgpu_state_page, memory_order_acquire);
	if (!state && !(state = make_page())) {
		atomic_store_explicit(&hopeless, true, memory_order_relaxed);
		errno = error;
		return NULL;
	}
	mutex_lock(&state->starting);
	if (atomic_load_explicit(&state->phase, memory_order_relaxed) == PHASE_NEW) {
		enum identity identity = vgpu_identify(state->file.name);
		bool on = identity != IDENTITY_NONE;
		state->file.mounted = identity == IDENTITY_MOUNTED;
		if (identity == IDENTITY_UNCLEAR)
			quota_refuse_all(&state->file);
		else if (on)
			quota_file_read(&state->file, &state->account);
		const struct quota *quota = atomic_load_explicit(&state->file.quota, memory_order_acquire);
		if (quota)
			agent_report_first(&state->account, quota);
		/* Do little in the first call of a process: NVML is queried one second later. */
		atomic_store(&state->look_again_ns, coarse_ns() + LOOK_EVERY_NS);
		atomic_store_explicit(&state->phase, on ? PHASE_ON : PHASE_OFF, memory_order_release);
	}
	mutex_unlock(&state->starting);
	errno = error;
	return atomic_load_explicit(&state->phase, memory_order_acquire) == PHASE_ON ? state : NULL;
}

/* Check the quota file in one thread, while other threads use the current values. */
static __attribute__((noinline)) void look_again(struct state *state, int64_t due, int64_t now)
{
	if (!atomic_compare_exchange_strong(&state->look_again_ns, &due, now + LOOK_EVERY_NS))
		return;
	int error = errno;
	mutex_lock(&state->starting);
	quota_file_read(&state->file, &state->account);
	mutex_unlock(&state->starting);
	const struct quota *quota = atomic_load_explicit(&state->file.quota, memory_order_acquire);
	if (quota)
		account_settle(&state->account, quota);
	errno = error;
}

const struct quota *vgpu_quota(void)
{
	struct state *state = vgpu_state();
	if (!state)
		return NULL;
	int64_t now = coarse_ns(), due = atomic_load_explicit(&state->look_again_ns, memory_order_relaxed);
	if (UNLIKELY(now >= due))
		look_again(state, due, now);
	return atomic_load_explicit(&state->file.quota, memory_order_acquire);
}
