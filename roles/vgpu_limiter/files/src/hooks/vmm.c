/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Hooks of physical memory that is created and mapped by separate calls (used by PyTorch's expandable segments). The
 * memory is freed after all its handles are released and all its mappings are unmapped, in any order. A block
 * represents the memory, and counts handles and mappings. Memory imported from another process has no block.
 */
#include "account/charge.h"
#include "account/sums.h"
#include "driver/reals.h"
#include "process/state.h"
#include "process/target.h"

/* --- requires account->tables.lock --- */

static struct entry *find_block(struct account *account, uint64_t id)
{
	return id ? table_find(&account->tables.table[T_BLOCK], id) : NULL;
}

/* Remove a block if its memory is free. Return its cost, or 0 if it stays. */
static uint64_t drop_if_free(struct account *account, uint64_t id, int *gpu)
{
	struct entry *block = find_block(account, id);
	if (!block || block->pooled || block->count > 0 || block->with > 0)
		return 0;
	uint64_t bytes = block->bytes;
	*gpu = block->gpu;
	table_remove(&account->tables.table[T_BLOCK], block);
	return bytes;
}

/* Add a handle to the block. Return false if there is no memory for the entry. */
static bool add_handle(struct account *account, CUmemGenericAllocationHandle handle, uint64_t id)
{
	struct entry *block = find_block(account, id);
	struct entry *known = block ? table_add(&account->tables.table[T_HANDLE], handle) : NULL;
	if (!known)
		return false;
	/* A reused handle value replaces the earlier handle, which no longer exists. */
	if (known->with != id) {
		struct entry *before = find_block(account, known->with);
		if (before)
			before->count -= known->count;
		known->count = 0;
	}
	known->with = id;
	known->count++;
	block->count++;
	return true;
}

/* Return the block that is mapped at the address. If the address has no entry, find the mapping that contains it. */
static uint64_t block_at(struct account *account, uint64_t address)
{
	struct table *table = &account->tables.table[T_MAPPING];
	struct entry *first = table_find(table, address);
	if (first)
		return first->with;
	for (uint32_t i = 0; i < table->capacity; i++)
		if (table->entries[i].taken && address - table->entries[i].key < table->entries[i].bytes)
			return table->entries[i].with;
	return 0;
}

/* --- the hooks --- */

static void drop_and_uncharge(struct account *account, uint64_t id)
{
	int gpu = -1;
	mutex_lock(&account->tables.lock);
	uint64_t bytes = drop_if_free(account, id, &gpu);
	mutex_unlock(&account->tables.lock);
	if (bytes)
		uncharge(account, gpu, bytes);
}

static bool add_block(struct account *account, CUmemGenericAllocationHandle handle, int gpu, uint64_t bytes)
{
	mutex_lock(&account->tables.lock);
	uint64_t id = ++account->tables.last_block;
	struct entry *block = table_add(&account->tables.table[T_BLOCK], id);
	if (block) {
		block->bytes = bytes;
		block->gpu = (int16_t)gpu;
	}
	bool kept = block && add_handle(account, handle, id);
	if (block && !kept)
		table_remove(&account->tables.table[T_BLOCK], find_block(account, id));
	mutex_unlock(&account->tables.lock);
	return kept;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *what, unsigned long long flags)
{
	struct target target = { .gpu = NOT_COUNTED };
	/* Use the device from the memory's description, because the thread may have no context. */
	if (handle && bytes > 0 && what && what->location.type == CU_MEM_LOCATION_TYPE_DEVICE)
		target = target_of_device(what->location.id);
	if (target.gpu == NOT_COUNTED)
		return REAL(cuMemCreate)(handle, bytes, what, flags);
	if (!charge(vgpu_account(), &target, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = REAL(cuMemCreate)(handle, bytes, what, flags);
	if (result == CUDA_SUCCESS && add_block(vgpu_account(), *handle, target.gpu, bytes)) {
		tenant_note_peak(&vgpu_account()->tenant, target.gpu);
		return CUDA_SUCCESS;
	}
	if (result == CUDA_SUCCESS) {
		REAL(cuMemRelease)(*handle);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	uncharge(vgpu_account(), target.gpu, bytes);
	return result;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
	struct account *account = vgpu_quota_now() ? vgpu_account() : NULL;
	CUresult result = REAL(cuMemRetainAllocationHandle)(handle, address);
	if (account && result == CUDA_SUCCESS) {
		mutex_lock(&account->tables.lock);
		uint64_t id = block_at(account, (uintptr_t)address);
		if (id)
			add_handle(account, *handle, id);
		mutex_unlock(&account->tables.lock);
	}
	return result;
}

/* Remove the entry during the driver call, because another thread may get the same handle value as soon as it is
 * free. */
CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	struct account *account = vgpu_account();
	uint64_t id = 0;
	if (account) {
		mutex_lock(&account->tables.lock);
		struct entry *known = table_find(&account->tables.table[T_HANDLE], handle);
		if (known) {
			id = known->with;
			if (--known->count == 0)
				table_remove(&account->tables.table[T_HANDLE], known);
		}
		mutex_unlock(&account->tables.lock);
	}
	CUresult result = REAL(cuMemRelease)(handle);
	if (id) {
		mutex_lock(&account->tables.lock);
		struct entry *block = find_block(account, id);
		if (block)
			block->count--;
		if (block && result != CUDA_SUCCESS)
			add_handle(account, handle, id);
		mutex_unlock(&account->tables.lock);
		drop_and_uncharge(account, id);
	}
	return result;
}

/* Count the mapping before the driver maps, so that a concurrent release does not free the block. */
CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	struct account *account = vgpu_quota_now() ? vgpu_account() : NULL;
	if (!account)
		return REAL(cuMemMap)(address, bytes, offset, handle, flags);
	mutex_lock(&account->tables.lock);
	struct entry *known = table_find(&account->tables.table[T_HANDLE], handle);
	uint64_t id = known ? known->with : 0;
	struct entry *block = find_block(account, id);
	if (block)
		block->with++;
	mutex_unlock(&account->tables.lock);
	CUresult result = REAL(cuMemMap)(address, bytes, offset, handle, flags);
	struct entry mapping = { .bytes = bytes, .with = id };
	mutex_lock(&account->tables.lock);
	struct entry *there = result == CUDA_SUCCESS ? table_add(&account->tables.table[T_MAPPING], address) : NULL;
	if (there) {
		mapping.key = address;
		mapping.taken = true;
		*there = mapping;
	} else if ((block = find_block(account, id))) {
		block->with--;
	}
	mutex_unlock(&account->tables.lock);
	if (result == CUDA_SUCCESS && !there) {
		REAL(cuMemUnmap)(address, bytes);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (!there && id)
		drop_and_uncharge(account, id);
	return result;
}

/* The range may contain several complete mappings. */
CUresult cuMemUnmap(CUdeviceptr address, size_t bytes)
{
	struct account *account = vgpu_account();
	CUresult result = REAL(cuMemUnmap)(address, bytes);
	if (!account || result != CUDA_SUCCESS)
		return result;
	for (uint64_t at = address; at - address < bytes;) {
		struct entry mapping;
		if (!take_out(&account->tables, T_MAPPING, at, &mapping) || mapping.bytes == 0)
			break;
		mutex_lock(&account->tables.lock);
		struct entry *block = find_block(account, mapping.with);
		if (block && block->with > 0)
			block->with--;
		mutex_unlock(&account->tables.lock);
		if (mapping.with)
			drop_and_uncharge(account, mapping.with);
		at += mapping.bytes;
	}
	return result;
}
