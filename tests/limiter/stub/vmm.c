/* Copyright: (c) openfleet.gpu contributors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Physical memory by handle. The memory is freed when its last reference is released and its last mapping is removed.
 */
#include "objects.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

struct physical {
    struct physical *next;
    CUmemGenericAllocationHandle handle;
    size_t size;
    int gpu; /* -1: host memory */
    bool imported;
    unsigned int references, mappings;
};

struct mapping {
    struct mapping *next;
    CUdeviceptr address;
    size_t size;
    struct physical *memory;
};

#define GRANULARITY ((size_t)2 << 20)

static struct physical *all;
static struct mapping *mappings;
static CUmemGenericAllocationHandle last_handle = 0x1000;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct physical *find(CUmemGenericAllocationHandle handle)
{
    struct physical *memory = all;
    while (memory && memory->handle != handle)
        memory = memory->next;
    return memory;
}

static struct physical *add(size_t size, int gpu, bool imported)
{
    struct physical *memory = calloc(1, sizeof *memory);
    *memory = (struct physical){all, ++last_handle, size, gpu, imported, 1, 0};
    return all = memory;
}

static void drop_unused(struct physical *memory)
{
    if (memory->references || memory->mappings)
        return;
    if (memory->gpu >= 0 && !memory->imported)
        stub_give(memory->gpu, STUB_PHYSICAL, memory->size);
    for (struct physical **at = &all; *at; at = &(*at)->next)
        if (*at == memory) {
            *at = memory->next;
            break;
        }
    free(memory);
}

EXPORT CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *wanted, int option)
{
    (void)option;
    CUresult ready = stub_ready();
    if (ready || !granularity || !wanted)
        return ready ? ready : CUDA_ERROR_INVALID_VALUE;
    *granularity = GRANULARITY;
    return CUDA_SUCCESS;
}

/* This function needs no context, because the properties name the device. */
EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *wanted, unsigned long long flags)
{
    CUresult result = stub_ready();
    if (result || !handle || !wanted || !size || size % GRANULARITY || flags || wanted->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    int gpu = -1;
    if (wanted->location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
        gpu = stub_gpu_of(wanted->location.id);
        if (gpu < 0)
            return CUDA_ERROR_INVALID_DEVICE;
        result = stub_take(__func__, gpu, STUB_PHYSICAL, size);
        if (result)
            return result;
    } else if (wanted->location.type < CU_MEM_LOCATION_TYPE_HOST || wanted->location.type > CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&lock);
    *handle = add(size, gpu, false)->handle;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    CUresult result = stub_ready();
    if (result)
        return result;
    pthread_mutex_lock(&lock);
    struct physical *memory = find(handle);
    if (!memory || !memory->references) {
        result = CUDA_ERROR_INVALID_VALUE;
    } else {
        memory->references--;
        drop_unused(memory);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    CUresult ready = stub_ready();
    if (ready || !handle)
        return ready ? ready : CUDA_ERROR_INVALID_VALUE;
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)address;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    for (struct mapping *mapping = mappings; mapping; mapping = mapping->next)
        if (at >= mapping->address && at - mapping->address < mapping->size) {
            mapping->memory->references++;
            *handle = mapping->memory->handle;
            result = CUDA_SUCCESS;
            break;
        }
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT CUresult cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr wish, unsigned long long flags)
{
    (void)alignment, (void)wish;
    CUresult ready = stub_ready();
    if (ready || !address || !size || size % GRANULARITY || flags)
        return ready ? ready : CUDA_ERROR_INVALID_VALUE;
    *address = stub_address(size);
    stub_block_add((struct block){*address, size, BLOCK_RESERVED, -1, 0, NULL});
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAddressFree(CUdeviceptr address, size_t size)
{
    struct block block;
    CUresult ready = stub_ready();
    if (ready || !stub_block_at(address, &block) || block.kind != BLOCK_RESERVED || block.size != size)
        return ready ? ready : CUDA_ERROR_INVALID_VALUE;
    stub_block_remove(address, &block);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    struct block block;
    CUresult result = stub_ready();
    if (result)
        return result;
    if (offset || flags || !stub_block_around(address, &block) || block.kind != BLOCK_RESERVED || address + size > block.address + block.size)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    struct physical *memory = find(handle);
    if (!memory || !memory->references || size != memory->size)
        result = CUDA_ERROR_INVALID_VALUE;
    for (struct mapping *mapping = mappings; mapping && !result; mapping = mapping->next)
        if (address < mapping->address + mapping->size && mapping->address < address + size)
            result = CUDA_ERROR_INVALID_VALUE;
    if (!result) {
        struct mapping *made = calloc(1, sizeof *made);
        *made = (struct mapping){mappings, address, size, memory};
        mappings = made;
        memory->mappings++;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* Unmap adjacent mappings. Each mapping must be completely in the range. */
EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t size)
{
    CUresult result = stub_ready();
    if (result)
        return result;
    size_t found = 0;
    pthread_mutex_lock(&lock);
    for (struct mapping *mapping = mappings; mapping; mapping = mapping->next)
        if (mapping->address >= address && mapping->address + mapping->size <= address + size)
            found += mapping->size;
    if (!size || found != size)
        result = CUDA_ERROR_INVALID_VALUE;
    for (struct mapping **at = &mappings; *at && !result;) {
        struct mapping *mapping = *at;
        if (mapping->address < address || mapping->address + mapping->size > address + size) {
            at = &mapping->next;
            continue;
        }
        *at = mapping->next;
        mapping->memory->mappings--;
        drop_unused(mapping->memory);
        free(mapping);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *wanted, size_t count)
{
    (void)address, (void)size;
    CUresult ready = stub_ready();
    return ready ? ready : wanted && count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* --- Sharing: the shareable handle is a pipe that contains the size --- */

EXPORT CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle, int type, unsigned long long flags)
{
    CUresult result = stub_ready();
    int ends[2];
    if (result || !shareable || type != 1 || flags || pipe(ends))
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    struct physical *memory = find(handle);
    if (!memory || write(ends[1], &memory->size, sizeof memory->size) != sizeof memory->size)
        result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&lock);
    close(ends[1]);
    *(int *)shareable = ends[0];
    return result;
}

EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable, int type)
{
    size_t size;
    CUresult ready = stub_ready();
    if (ready || !handle || type != 1 || read((int)(intptr_t)shareable, &size, sizeof size) != sizeof size)
        return ready ? ready : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    *handle = add(size, 0, true)->handle;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}
