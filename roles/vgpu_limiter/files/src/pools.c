/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Stream-ordered memory. What a pool holds on the GPU is what it has reserved, used or not, so that
 * is what is charged: after each call, the difference to what was charged before. The same for the
 * memory of graphs, which each device holds in one place.
 *
 * A pool grows at least by what does not go into the part of it that nobody uses: that much is looked for
 * before the driver is asked. Growth that turns out not to fit is handed back, and the answer is out of
 * memory. state->pools is held over all that, so that a difference is one thread's.
 */
#include "allocations.h"
#include "tenant.h"

/* While another thread captures a stream, some calls would spoil its capture, were it not for this. */
static int relax_capture(void)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	if (HAVE(cuThreadExchangeStreamCaptureMode))
		REAL(cuThreadExchangeStreamCaptureMode)(&mode);
	return mode;
}

static void restore_capture(int mode)
{
	if (HAVE(cuThreadExchangeStreamCaptureMode))
		REAL(cuThreadExchangeStreamCaptureMode)(&mode);
}

static bool reserved_by(CUmemoryPool pool, uint64_t *bytes)
{
	return REAL(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, bytes) == CUDA_SUCCESS;
}

/* --- pools and their blocks; state->pools is held --- */

static bool block_of(struct state *state, CUmemoryPool pool, struct entry *block)
{
	mutex_lock(&state->tables_lock);
	struct entry *known = table_find(&state->tables[T_POOL], (uintptr_t)pool);
	struct entry *there = known ? table_find(&state->tables[T_BLOCK], known->with) : NULL;
	if (there)
		*block = *there;
	mutex_unlock(&state->tables_lock);
	return there != NULL;
}

static bool add_pool(struct state *state, CUmemoryPool pool, int gpu, CUdevice device)
{
	mutex_lock(&state->tables_lock);
	uint64_t id = ++state->last_block;
	struct entry *block = table_add(&state->tables[T_BLOCK], id);
	struct entry *known = block ? table_add(&state->tables[T_POOL], (uintptr_t)pool) : NULL;
	if (known) {
		*block = (struct entry){ .key = id, .taken = true, .pooled = true, .with = (uintptr_t)pool, .gpu = (int16_t)gpu };
		known->with = id;
		known->count = (uint32_t)device;
	} else if (block) {
		table_remove(&state->tables[T_BLOCK], block);
	}
	mutex_unlock(&state->tables_lock);
	return known != NULL;
}

/* What is charged for the block becomes `bytes`; false: it does not fit, and nothing has changed. */
static bool set_charge(struct state *state, const struct entry *block, uint64_t bytes, uint64_t limit)
{
	if (bytes > block->bytes && !tenant_reserve(state, block->gpu, bytes - block->bytes, limit))
		return false;
	tenant_note_peak(state, block->gpu);
	if (bytes < block->bytes)
		tenant_give_back(state, block->gpu, block->bytes - bytes);
	mutex_lock(&state->tables_lock);
	struct entry *there = table_find(&state->tables[T_BLOCK], block->key);
	if (there)
		there->bytes = bytes;
	mutex_unlock(&state->tables_lock);
	return true;
}

static void settle_pool(struct state *state, CUmemoryPool pool)
{
	struct entry block;
	uint64_t bytes;
	if (reserved_by(pool, &bytes) && block_of(state, pool, &block))
		set_charge(state, &block, bytes, UINT64_MAX);
}

static void trim_pool(CUmemoryPool pool, uint64_t keep)
{
	int mode = relax_capture();
	REAL(cuMemPoolTrimTo)(pool, keep);
	restore_capture(mode);
}

/* All of the GPU (-1: of all). What `growing` has come to hold is not charged yet: that may not fit. */
static void settle_all(struct state *state, int gpu, bool trim, CUmemoryPool growing)
{
	struct table *pools = &state->tables[T_POOL];
	/* Only who holds state->pools changes this table, which may be a callback within the driver's calls here: it is read
	 * again each time. The driver is not asked under tables_lock. */
	for (uint32_t i = 0; i < pools->capacity; i++) {
		struct entry block;
		CUmemoryPool pool = (CUmemoryPool)(uintptr_t)pools->entries[i].key;
		if (!pools->entries[i].taken || !block_of(state, pool, &block) || (gpu >= 0 && block.gpu != gpu))
			continue;
		if (trim)
			trim_pool(pool, 0);
		if (pool != growing)
			settle_pool(state, pool);
	}
}

void settle_pools_held(struct state *state, int gpu, bool trim)
{
	settle_all(state, gpu, trim, NULL);
}

void settle_pools(struct state *state, int gpu, bool trim)
{
	pools_lock(state);
	settle_pools_held(state, gpu, trim);
	pools_unlock(state);
}

/* --- allocating --- */

/* A pool that nobody has made: a device's own, or one of another process, which is not counted here. */
static struct target target_of_pool(struct state *state, CUmemoryPool pool)
{
	mutex_lock(&state->tables_lock);
	struct entry *known = table_find(&state->tables[T_POOL], (uintptr_t)pool);
	CUdevice of = known ? (CUdevice)known->count : -1;
	mutex_unlock(&state->tables_lock);
	if (of >= 0)
		return target_of_device(of);
	int devices = 0;
	REAL(cuDeviceGetCount)(&devices);
	for (CUdevice device = 0; device < devices && device < DEVICES; device++) {
		CUmemoryPool own = NULL;
		if (REAL(cuDeviceGetDefaultMemPool)(&own, device) == CUDA_SUCCESS && own == pool)
			return target_of_device(device);
	}
	return (struct target){ .gpu = NOT_COUNTED };
}

/* The call of each hook, in one shape. A stream that captures allocates nothing now. */
struct request {
	CUdeviceptr *pointer;
	size_t bytes;
	CUmemoryPool pool;		/* NULL: the device's current one */
	CUstream stream;
	bool per_thread, from_pool;
};

static CUresult ask(const struct request *r)
{
	if (r->from_pool)
		return r->per_thread ? REAL(cuMemAllocFromPoolAsync_ptsz)(r->pointer, r->bytes, r->pool, r->stream)
		                     : REAL(cuMemAllocFromPoolAsync)(r->pointer, r->bytes, r->pool, r->stream);
	return r->per_thread ? REAL(cuMemAllocAsync_ptsz)(r->pointer, r->bytes, r->stream)
	                     : REAL(cuMemAllocAsync)(r->pointer, r->bytes, r->stream);
}

static void hand_back(const struct request *r)
{
	if (r->per_thread)
		REAL(cuMemFreeAsync_ptsz)(*r->pointer, r->stream);
	else
		REAL(cuMemFreeAsync)(*r->pointer, r->stream);
}

bool vgpu_is_capturing(CUstream stream, bool per_thread)
{
	int status = CU_STREAM_CAPTURE_STATUS_NONE;
	CUresult result = per_thread ? REAL(cuStreamIsCapturing_ptsz)(stream, &status) : REAL(cuStreamIsCapturing)(stream, &status);
	return result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* Looks for room for the least by which the pool has to grow for `bytes` more, and reserves none. */
static bool find_room(struct state *state, const struct target *target, CUmemoryPool pool, uint64_t bytes)
{
	uint64_t used = 0, reserved = 0;
	if (REAL(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used) != CUDA_SUCCESS)
		used = 0;
	if (!reserved_by(pool, &reserved))
		reserved = 0;
	uint64_t unused = reserved > used ? reserved - used : 0;
	return bytes <= unused || tenant_has_room(state, target->gpu, bytes - unused, target->limit_bytes);
}

static bool keep(struct state *state, CUdeviceptr pointer, uint64_t id, int gpu)
{
	struct entry entry = { .pooled = true, .with = id, .gpu = (int16_t)gpu };
	if (!remember(state, T_POINTER, pointer, &entry))
		return false;
	mutex_lock(&state->tables_lock);
	struct entry *block = table_find(&state->tables[T_BLOCK], id);
	if (block)
		block->count++;
	mutex_unlock(&state->tables_lock);
	return true;
}

static bool set_charge_to_growth(struct state *state, const struct request *r, const struct target *target)
{
	struct entry block;
	uint64_t bytes;
	return !reserved_by(r->pool, &bytes) || !block_of(state, r->pool, &block)
	    || set_charge(state, &block, bytes, target->limit_bytes);
}

/* With state->pools held. */
static CUresult allocate(struct state *state, const struct request *r, const struct target *target)
{
	struct entry block;
	uint64_t before = 0;
	if (!block_of(state, r->pool, &block)
	    && !(add_pool(state, r->pool, target->gpu, target->device) && block_of(state, r->pool, &block)))
		return CUDA_ERROR_OUT_OF_MEMORY;
	reserved_by(r->pool, &before);
	if (!find_room(state, target, r->pool, r->bytes)) {
		settle_all(state, target->gpu, true, NULL);
		before = 0;
		reserved_by(r->pool, &before);
		if (!find_room(state, target, r->pool, r->bytes))
			return CUDA_ERROR_OUT_OF_MEMORY;
	}
	CUresult result = ask(r);
	if (result != CUDA_SUCCESS)
		return result;
	bool fits = set_charge_to_growth(state, r, target);
	if (!fits) {
		/* What this pool and others keep without need may make the room. */
		settle_all(state, target->gpu, true, r->pool);
		fits = set_charge_to_growth(state, r, target);
	}
	if (fits && keep(state, *r->pointer, block.key, target->gpu))
		return CUDA_SUCCESS;
	hand_back(r);
	*r->pointer = 0;
	trim_pool(r->pool, before);
	settle_pool(state, r->pool);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult allocate_async(struct request *r)
{
	if (!vgpu_quota() || !r->pointer || r->bytes == 0 || vgpu_is_capturing(r->stream, r->per_thread))
		return ask(r);
	struct state *state = vgpu_state();
	struct target target = r->from_pool ? target_of_pool(state, r->pool) : target_of_stream(r->stream);
	if (target.gpu == NO_PLACE)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (target.gpu < 0 || (!r->from_pool && REAL(cuDeviceGetMemPool)(&r->pool, target.device) != CUDA_SUCCESS))
		return ask(r);
	pools_lock(state);
	CUresult result = allocate(state, r, &target);
	pools_unlock(state);
	if (result == CUDA_ERROR_OUT_OF_MEMORY)
		tenant_refused(state, target.gpu);
	return result;
}

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
	return allocate_async(&(struct request){ .pointer = pointer, .bytes = bytes, .stream = stream });
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
	return allocate_async(&(struct request){ .pointer = pointer, .bytes = bytes, .stream = stream, .per_thread = true });
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	return allocate_async(&(struct request){ .pointer = pointer, .bytes = bytes, .pool = pool, .stream = stream, .from_pool = true });
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	return allocate_async(&(struct request){ .pointer = pointer, .bytes = bytes, .pool = pool, .stream = stream,
	                                         .from_pool = true, .per_thread = true });
}

/* --- freeing --- */

/* With state->pools held: a pool that is gone is paid for until its last pointer is freed. */
static void drop_orphan(struct state *state, uint64_t id)
{
	struct entry block = { 0 };
	mutex_lock(&state->tables_lock);
	struct entry *there = table_find(&state->tables[T_BLOCK], id);
	if (there && there->with == 0 && there->count == 0) {
		block = *there;
		table_remove(&state->tables[T_BLOCK], there);
	}
	mutex_unlock(&state->tables_lock);
	if (block.bytes)
		tenant_give_back(state, block.gpu, block.bytes);
}

void pool_pointer_freed(struct state *state, uint64_t id)
{
	CUmemoryPool pool = NULL;
	pools_lock(state);
	mutex_lock(&state->tables_lock);
	struct entry *block = table_find(&state->tables[T_BLOCK], id);
	if (block) {
		block->count -= block->count > 0;
		pool = (CUmemoryPool)(uintptr_t)block->with;
	}
	mutex_unlock(&state->tables_lock);
	if (pool)
		settle_pool(state, pool);
	else
		drop_orphan(state, id);
	pools_unlock(state);
}

static CUresult free_async(CUdeviceptr pointer, CUstream stream, CUresult real(CUdeviceptr, CUstream))
{
	struct state *state = vgpu_state();
	struct entry entry;
	bool known = state && take_out(state, T_POINTER, pointer, &entry);
	CUresult result = real(pointer, stream);
	if (known)
		freed(state, T_POINTER, &entry, result);
	return result;
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) { return free_async(pointer, stream, REAL(cuMemFreeAsync)); }
CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) { return free_async(pointer, stream, REAL(cuMemFreeAsync_ptsz)); }

/* --- pools --- */

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *what)
{
	struct target target = { .gpu = NOT_COUNTED };
	if (pool && what && what->location.type == CU_MEM_LOCATION_TYPE_DEVICE)
		target = target_of_device(what->location.id);
	/* Nothing could be allocated from it. */
	if (target.gpu == NO_PLACE)
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = REAL(cuMemPoolCreate)(pool, what);
	if (result == CUDA_SUCCESS && target.gpu >= 0) {
		struct state *state = vgpu_state();
		pools_lock(state);
		add_pool(state, *pool, target.gpu, target.device);
		pools_unlock(state);
	}
	return result;
}

/* Nobody may ask the driver about a pool that it has destroyed, so it is destroyed under the lock. */
CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	struct state *state = vgpu_state();
	if (!state)
		return REAL(cuMemPoolDestroy)(pool);
	struct entry known;
	pools_lock(state);
	CUresult result = REAL(cuMemPoolDestroy)(pool);
	if (result == CUDA_SUCCESS && take_out(state, T_POOL, (uintptr_t)pool, &known)) {
		mutex_lock(&state->tables_lock);
		struct entry *block = table_find(&state->tables[T_BLOCK], known.with);
		if (block)
			block->with = 0;
		mutex_unlock(&state->tables_lock);
		drop_orphan(state, known.with);
	}
	pools_unlock(state);
	return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	CUresult result = REAL(cuMemPoolTrimTo)(pool, keep);
	struct state *state = vgpu_state();
	if (state) {
		pools_lock(state);
		settle_pool(state, pool);
		pools_unlock(state);
	}
	return result;
}
