/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Record the cost of each allocation until it is freed.
 */
#include "account/holdings.h"

#include "account/pool_blocks.h"
#include "account/sums.h"
#include "driver/reals.h"

bool remember(struct account *account, enum table_kind kind, uint64_t key, const struct entry *entry)
{
	struct entry replaced;
	bool kept = table_put(&account->tables, kind, key, entry, &replaced);
	if (replaced.bytes)
		uncharge(account, replaced.gpu, replaced.bytes);
	return kept;
}

bool remember_allocation(struct account *account, enum table_kind kind, uint64_t key, const struct target *target, uint64_t bytes)
{
	CUcontext context = NULL;
	REAL(cuCtxGetCurrent)(&context);
	struct entry entry = { .bytes = bytes, .with = (uintptr_t)context, .gpu = (int16_t)target->gpu };
	if (!remember(account, kind, key, &entry))
		return false;
	tenant_note_peak(&account->tenant, target->gpu);
	return true;
}

struct freeing freeing_begins(struct account *account, enum table_kind kind, uint64_t key)
{
	struct freeing freeing = { .account = account, .kind = kind };
	freeing.known = account && take_out(&account->tables, kind, key, &freeing.entry);
	return freeing;
}

CUresult freeing_ends(const struct freeing *freeing, CUresult result)
{
	const struct entry *entry = &freeing->entry;
	if (!freeing->known)
		return result;
	if (result != CUDA_SUCCESS)
		remember(freeing->account, freeing->kind, entry->key, entry);
	else if (entry->pooled)
		pool_pointer_freed(freeing->account, entry->with);
	else
		uncharge(freeing->account, entry->gpu, entry->bytes);
	return result;
}

void forget_allocations_of(struct account *account, CUcontext context)
{
	static const enum table_kind kinds[] = { T_POINTER, T_ARRAY, T_MIPMAP };
	for (int k = 0; k < 3; k++) {
		struct table *table = &account->tables.table[kinds[k]];
		mutex_lock(&account->tables.lock);
		/* A removal may move another entry to this position. */
		for (uint32_t i = 0; i < table->capacity;) {
			struct entry entry = table->entries[i];
			if (!entry.taken || entry.pooled || entry.with != (uintptr_t)context) {
				i++;
				continue;
			}
			table_remove(table, &table->entries[i]);
			uncharge(account, entry.gpu, entry.bytes);
		}
		mutex_unlock(&account->tables.lock);
	}
}
