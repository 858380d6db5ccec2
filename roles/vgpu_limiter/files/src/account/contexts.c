/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Charge contexts.
 */
#include "account/contexts.h"

#include "account/agent_report.h"
#include "account/context_events.h"
#include "account/context_sums.h"
#include "account/nvml.h"
#include "account/pool_blocks.h"
#include "account/sums.h"
#include "driver/reals.h"

static void reserve_as_pending(struct account *account, int gpu, uint64_t bytes)
{
	atomic_fetch_add(&account->context_pending[gpu], bytes);
	atomic_fetch_add(&account->context_charged[gpu], bytes);
}

static void give_back(struct account *account, int gpu, uint64_t charged, uint64_t held)
{
	atomic_fetch_sub(&account->context_charged[gpu], charged);
	if (held)
		tenant_give_back_context(&account->tenant, gpu, held);
}

static bool reserve(struct account *account, const struct target *target, uint64_t bytes)
{
	if (bytes == 0)
		return true;
	reserve_as_pending(account, target->gpu, bytes);
	if (tenant_reserve_context(&account->tenant, target->gpu, bytes, target->limit_bytes))
		return true;
	settle_pools(account, target->gpu, true);
	if (tenant_reserve_context(&account->tenant, target->gpu, bytes, target->limit_bytes))
		return true;
	atomic_fetch_sub(&account->context_pending[target->gpu], bytes);
	atomic_fetch_sub(&account->context_charged[target->gpu], bytes);
	tenant_refused(&account->tenant, target->gpu);
	return false;
}

static void drop_reservation(struct account *account, const struct making *m)
{
	if (m->bytes == 0)
		return;
	atomic_fetch_sub(&account->context_pending[m->target.gpu], m->bytes);
	give_back(account, m->target.gpu, m->bytes, m->bytes);
}

bool context_admit(struct account *account, const struct quota *quota, struct making *m)
{
	if (m->target.gpu < 0 || m->target.limit_bytes == UINT64_MAX)
		return true;
	m->bytes = tenant_context_cost(&account->tenant, m->target.gpu);
	if (m->bytes == 0 && atomic_load(&account->contexts[m->target.gpu]) > 0) {
		if (!agent_report_learn(account, quota))
			nvml_learn_now(account, quota);
		m->bytes = tenant_context_cost(&account->tenant, m->target.gpu);
	}
	if (!reserve(account, &m->target, m->bytes))
		return false;
	context_change_begins(account);
	return true;
}

CUresult context_made(struct account *account, const struct making *m, CUresult result, CUcontext context)
{
	if (m->target.gpu < 0 || m->target.limit_bytes == UINT64_MAX)
		return result;
	bool is_new = false;
	if (result == CUDA_SUCCESS && context) {
		mutex_lock(&account->tables.lock);
		is_new = !table_find(&account->tables.table[T_CONTEXT], (uintptr_t)context);
		struct entry *entry = is_new ? table_add(&account->tables.table[T_CONTEXT], (uintptr_t)context) : NULL;
		if (entry) {
			entry->bytes = m->bytes;
			entry->gpu = (int16_t)m->target.gpu;
		}
		is_new = entry != NULL;
		mutex_unlock(&account->tables.lock);
	}
	if (is_new) {
		atomic_fetch_add(&account->contexts[m->target.gpu], 1);
		atomic_fetch_sub(&account->context_pending[m->target.gpu], m->bytes);
		tenant_note_peak(&account->tenant, m->target.gpu);
	} else {
		drop_reservation(account, m);
	}
	context_change_ends(account);
	return result;
}

void context_is_gone(struct account *account, CUcontext context)
{
	struct entry entry;
	if (!take_out(&account->tables, T_CONTEXT, (uintptr_t)context, &entry))
		return;
	/* The first context was created before its cost was known, so subtract NVML's value for it too. */
	uint64_t cost = tenant_context_cost(&account->tenant, entry.gpu);
	atomic_fetch_sub(&account->contexts[entry.gpu], 1);
	give_back(account, entry.gpu, entry.bytes, entry.bytes > cost ? entry.bytes : cost);
}

/* --- limits --- */

/* Add the difference to the context's cost. Subtract at most the amount that was added before. */
static void change_context(struct account *account, int gpu, uint64_t before, uint64_t after)
{
	CUcontext context = NULL;
	uint64_t less = 0;
	REAL(cuCtxGetCurrent)(&context);
	mutex_lock(&account->tables.lock);
	struct entry *entry = table_find(&account->tables.table[T_CONTEXT], (uintptr_t)context);
	if (entry && after > before) {
		entry->bytes += after - before;
	} else if (entry) {
		less = before - after < entry->bytes ? before - after : entry->bytes;
		entry->bytes -= less;
	}
	mutex_unlock(&account->tables.lock);
	/* A context created before the quota existed has no record. If possible, NVML reports its memory. */
	if (!entry && after > before)
		less = after - before;
	if (less)
		give_back(account, gpu, less, less);
}

bool context_limit_admit(struct account *account, struct making *m, uint64_t before, uint64_t wanted)
{
	m->bytes = wanted > before ? wanted - before : 0;
	return reserve(account, &m->target, m->bytes);
}

CUresult context_limit_set(struct account *account, const struct making *m, uint64_t before, uint64_t wanted, CUresult result)
{
	if (result != CUDA_SUCCESS) {
		drop_reservation(account, m);
		return result;
	}
	if (m->bytes)
		atomic_fetch_sub(&account->context_pending[m->target.gpu], m->bytes);
	change_context(account, m->target.gpu, before, wanted);
	context_has_changed(account);
	tenant_note_peak(&account->tenant, m->target.gpu);
	return result;
}
