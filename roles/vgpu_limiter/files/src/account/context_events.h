/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Record changes of the process's contexts, because a report of their memory may be older than the last change.
 */
#ifndef CONTEXT_EVENTS_H
#define CONTEXT_EVENTS_H

#include "account/account.h"
#include "base/clock.h"

static inline void context_change_begins(struct account *account) { atomic_fetch_add(&account->contexts_begun, 1); }

/* Also call this after a limit changed the size of a context. */
static inline void context_has_changed(struct account *account)
{
	if (account->tenant.region)
		atomic_store(&account->tenant.region->slots[account->tenant.slot].contexts_changed_ns, kernel_ns());
}

static inline void context_change_ends(struct account *account)
{
	context_has_changed(account);
	atomic_fetch_add(&account->contexts_ended, 1);
}

static inline bool context_changes_are_over(struct account *account)
{
	return atomic_load(&account->contexts_ended) == atomic_load(&account->contexts_begun);
}

/* Return a bit mask of the GPUs on which the process has a context whose cost was not yet queried from NVML. */
static inline unsigned context_places_to_learn(struct account *account)
{
	unsigned with_contexts = 0;
	for (int gpu = 0; gpu < QUOTA_GPUS; gpu++)
		with_contexts |= atomic_load(&account->contexts[gpu]) > 0 ? 1u << gpu : 0;
	return with_contexts & ~atomic_load(&account->learned);
}

#endif
