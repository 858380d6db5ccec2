/* Copyright: (c) openfleet.gpu contributors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Stream-ordered allocation. A pool reserves memory in steps of 2 MiB, or STUB_POOL_GROWTH at once if possible. When
 * a process waits for the GPU, the pool shrinks to its release threshold. Pools do not fragment.
 */
#include "objects.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct CUmemPoolHandle_st {
    CUmemoryPool next;
    int gpu; /* -1: host memory */
    bool is_default, destroyed;
    uint64_t reserved, reserved_high, used, used_high, threshold, most;
    uint64_t flags[3];
};

#define STEP ((uint64_t)2 << 20)

static struct CUmemPoolHandle_st defaults[STUB_MAX_GPUS];
static CUmemoryPool current[STUB_MAX_GPUS], pools;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static uint64_t up(uint64_t bytes)
{
    return (bytes + STEP - 1) / STEP * STEP;
}

static CUmemoryPool default_of(int gpu)
{
    pthread_mutex_lock(&lock);
    CUmemoryPool pool = &defaults[gpu];
    if (!pool->is_default) {
        *pool = (struct CUmemPoolHandle_st){.next = pools, .gpu = gpu, .is_default = true, .flags = {1, 1, 1}};
        pools = pool;
    }
    pthread_mutex_unlock(&lock);
    return pool;
}

static bool known(CUmemoryPool wanted)
{
    pthread_mutex_lock(&lock);
    bool found = false;
    for (CUmemoryPool pool = pools; pool && !found; pool = pool->next)
        found = pool == wanted && !pool->destroyed;
    pthread_mutex_unlock(&lock);
    return found;
}

/* Shrink a pool to `bytes` or to the used size. The lock must be held. */
static void shrink(CUmemoryPool pool, uint64_t bytes)
{
    uint64_t left = up(pool->used) > bytes ? up(pool->used) : up(bytes);
    if (left >= pool->reserved)
        return;
    if (pool->gpu >= 0)
        stub_give(pool->gpu, STUB_POOL, pool->reserved - left);
    pool->reserved = left;
}

/* Remove a destroyed pool once its last block is freed. The lock must be held. */
static void bury(CUmemoryPool pool)
{
    if (!pool->destroyed || pool->used)
        return;
    shrink(pool, 0);
    for (CUmemoryPool *at = &pools; *at; at = &(*at)->next)
        if (*at == pool) {
            *at = pool->next;
            free(pool);
            return;
        }
}

void stub_pool_give(void *owner, size_t size)
{
    CUmemoryPool pool = owner;
    pthread_mutex_lock(&lock);
    pool->used -= size;
    bury(pool);
    pthread_mutex_unlock(&lock);
}

void stub_pools_settle(int gpu)
{
    pthread_mutex_lock(&lock);
    for (CUmemoryPool pool = pools; pool; pool = pool->next)
        if (pool->gpu == gpu && pool->reserved > pool->threshold)
            shrink(pool, pool->threshold);
    pthread_mutex_unlock(&lock);
}

void stub_pools_reset(int gpu)
{
    stub_blocks_of_owner(&defaults[gpu]);
    pthread_mutex_lock(&lock);
    if (defaults[gpu].is_default)
        shrink(&defaults[gpu], 0);
    pthread_mutex_unlock(&lock);
}

static CUresult grow(const char *function, CUmemoryPool pool, size_t size)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    if (pool->most && pool->used + size > pool->most) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    } else if (pool->used + size > pool->reserved) {
        uint64_t need = up(pool->used + size - pool->reserved), wish = up(stub_setting("STUB_POOL_GROWTH", 32 << 20));
        uint64_t growth = need > wish ? need : wish;
        if (pool->gpu >= 0)
            result = stub_take(function, pool->gpu, STUB_POOL, growth);
        if (result && growth > need) {
            growth = need;
            result = stub_take(function, pool->gpu, STUB_POOL, growth);
        }
        if (!result)
            pool->reserved += growth;
    }
    if (!result) {
        pool->used += size;
        if (pool->used > pool->used_high)
            pool->used_high = pool->used;
        if (pool->reserved > pool->reserved_high)
            pool->reserved_high = pool->reserved;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static CUresult allocate(const char *function, CUdeviceptr *address, size_t size, CUmemoryPool pool, CUstream stream)
{
    if (!address || !size)
        return CUDA_ERROR_INVALID_VALUE;
    CUgraph graph = stub_stream_graph(stream);
    if (graph)
        return stub_graph_add_memory(graph, pool->gpu, size, address);
    CUresult result = grow(function, pool, size);
    if (result)
        return result;
    stub_pause("STUB_PAUSE_GROWN");
    *address = stub_address(size);
    stub_block_add((struct block){*address, size, BLOCK_POOL, pool->gpu, 0, pool});
    return CUDA_SUCCESS;
}

static CUresult from_current(const char *function, CUdeviceptr *address, size_t size, CUstream stream)
{
    CUresult ready = stub_ready();
    int gpu = stub_stream_gpu(stream);
    if (ready || gpu < 0)
        return ready ? ready : CUDA_ERROR_INVALID_CONTEXT;
    CUmemoryPool pool = current[gpu];
    return allocate(function, address, size, pool ? pool : default_of(gpu), stream);
}

static CUresult from_pool(const char *function, CUdeviceptr *address, size_t size, CUmemoryPool pool, CUstream stream)
{
    CUresult ready = stub_ready();
    if (ready || !known(pool))
        return ready ? ready : CUDA_ERROR_INVALID_VALUE;
    return allocate(function, address, size, pool, stream);
}

static CUresult give_async(CUdeviceptr address, CUstream stream)
{
    struct block block;
    CUresult ready = stub_ready();
    if (ready)
        return ready;
    CUgraph graph = stub_stream_graph(stream);
    if (graph) {
        stub_graph_free_memory(graph, address);
        return CUDA_SUCCESS;
    }
    if (!stub_block_at(address, &block) || (block.kind != BLOCK_POOL && block.kind != BLOCK_GRAPH && block.kind != BLOCK_LINEAR)
        || !stub_block_remove(address, &block))
        return CUDA_ERROR_INVALID_VALUE;
    stub_block_give(&block);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAllocAsync(CUdeviceptr *address, size_t size, CUstream stream)
{
    return from_current(__func__, address, size, stream);
}

EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr *address, size_t size, CUstream stream)
{
    return from_current(__func__, address, size, stream ? stream : CU_STREAM_PER_THREAD);
}

EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t size, CUmemoryPool pool, CUstream stream)
{
    return from_pool(__func__, address, size, pool, stream);
}

EXPORT CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *address, size_t size, CUmemoryPool pool, CUstream stream)
{
    return from_pool(__func__, address, size, pool, stream ? stream : CU_STREAM_PER_THREAD);
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
    return give_async(address, stream);
}

EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream)
{
    return give_async(address, stream ? stream : CU_STREAM_PER_THREAD);
}

/* --- Pool functions --- */

EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *wanted)
{
    CUresult ready = stub_ready();
    if (ready || !pool || !wanted || wanted->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
        return ready ? ready : CUDA_ERROR_INVALID_VALUE;
    int gpu = wanted->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? stub_gpu_of(wanted->location.id) : -1;
    if (gpu < 0 && wanted->location.type == CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_DEVICE;
    CUmemoryPool made = calloc(1, sizeof *made);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *made = (struct CUmemPoolHandle_st){.gpu = gpu, .most = wanted->maxSize, .flags = {1, 1, 1}};
    pthread_mutex_lock(&lock);
    made->next = pools;
    *pool = pools = made;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    CUresult ready = stub_ready();
    if (ready || !known(pool) || pool->is_default)
        return ready ? ready : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    for (int gpu = 0; gpu < STUB_MAX_GPUS; gpu++)
        if (current[gpu] == pool)
            current[gpu] = NULL; /* the device's default pool becomes the current one again */
    pool->destroyed = true;
    bury(pool);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t bytes)
{
    CUresult ready = stub_ready();
    if (ready || !known(pool))
        return ready ? ready : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    shrink(pool, bytes);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value)
{
    CUresult ready = stub_ready();
    if (ready || !value || !known(pool))
        return ready ? ready : CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: *(uint64_t *)value = pool->threshold; break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: *(uint64_t *)value = pool->reserved; break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: *(uint64_t *)value = pool->reserved_high; break;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: *(uint64_t *)value = pool->used; break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: *(uint64_t *)value = pool->used_high; break;
    default:
        if (attribute < 1 || attribute > 3)
            return CUDA_ERROR_INVALID_VALUE;
        *(int *)value = (int)pool->flags[attribute - 1];
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value)
{
    CUresult ready = stub_ready();
    if (ready || !value || !known(pool))
        return ready ? ready : CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: pool->threshold = *(uint64_t *)value; break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: pool->reserved_high = pool->reserved; break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: pool->used_high = pool->used; break;
    default:
        if (attribute < 1 || attribute > 3)
            return CUDA_ERROR_INVALID_VALUE;
        pool->flags[attribute - 1] = (uint64_t)*(int *)value;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
    CUresult ready = stub_ready();
    if (ready || !pool || stub_gpu_of(device) < 0)
        return ready ? ready : CUDA_ERROR_INVALID_VALUE;
    *pool = default_of(stub_gpu_of(device));
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
    CUresult result = cuDeviceGetDefaultMemPool(pool, device);
    if (!result && current[stub_gpu_of(device)])
        *pool = current[stub_gpu_of(device)];
    return result;
}

EXPORT CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
    CUresult ready = stub_ready();
    if (ready || stub_gpu_of(device) < 0 || !known(pool) || pool->gpu != stub_gpu_of(device))
        return ready ? ready : CUDA_ERROR_INVALID_VALUE;
    current[stub_gpu_of(device)] = pool;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count)
{
    (void)map, (void)count;
    return known(pool) ? stub_ready() : CUDA_ERROR_INVALID_VALUE;
}

/* --- Functions that take a location, since CUDA 13.0 --- */

static CUdevice device_at(const CUmemLocation *location, int type)
{
    return location && location->type == CU_MEM_LOCATION_TYPE_DEVICE && type == CU_MEM_ALLOCATION_TYPE_PINNED ? location->id : -1;
}

EXPORT CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, int type)
{
    return cuDeviceGetDefaultMemPool(pool, device_at(location, type));
}

EXPORT CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, int type)
{
    return cuDeviceGetMemPool(pool, device_at(location, type));
}

EXPORT CUresult cuMemSetMemPool(CUmemLocation *location, int type, CUmemoryPool pool)
{
    return cuDeviceSetMemPool(device_at(location, type), pool);
}
