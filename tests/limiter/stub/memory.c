/* Copyright: (c) openfleet.gpu contributors
 * SPDX-License-Identifier: Apache-2.0
 *
 * cuMemAlloc and similar functions, cuMemGetInfo, pointer attributes, host memory and IPC.
 */
#include "objects.h"

#include <stdlib.h>
#include <string.h>

static CUresult allocate(const char *function, CUdeviceptr *address, size_t size, enum block_kind kind, enum stub_kind counted)
{
    CUresult result = stub_in_context();
    if (result || !address || !size)
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    int gpu = stub_current_gpu();
    result = stub_take(function, gpu, counted, size);
    if (result)
        return result;
    *address = stub_address(size);
    stub_block_add((struct block){*address, size, kind, gpu, stub_current_context(), NULL});
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size)
{
    return allocate(__func__, address, size, BLOCK_LINEAR, STUB_LINEAR);
}

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned int element)
{
    if (!pitch || !width || !height || (element != 4 && element != 8 && element != 16))
        return CUDA_ERROR_INVALID_VALUE;
    size_t row = (width + 511) / 512 * 512;
    CUresult result = allocate(__func__, address, row * height, BLOCK_LINEAR, STUB_LINEAR);
    if (!result)
        *pitch = row;
    stub_pause("STUB_PAUSE_GROWN");
    return result;
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *address, size_t size, unsigned int flags)
{
    if (flags != 1 && flags != 2) /* CU_MEM_ATTACH_GLOBAL, CU_MEM_ATTACH_HOST */
        return CUDA_ERROR_INVALID_VALUE;
    return allocate(__func__, address, size, BLOCK_MANAGED, STUB_MANAGED);
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr address)
{
    CUresult ready = stub_ready();
    struct block block;
    if (ready)
        return ready;
    if (!address)
        return CUDA_SUCCESS;
    if (!stub_block_at(address, &block) || block.kind == BLOCK_RESERVED || block.kind == BLOCK_IMPORTED)
        return CUDA_ERROR_INVALID_VALUE;
    stub_gpu_wait(block.gpu);
    if (!stub_block_remove(address, &block))
        return CUDA_ERROR_INVALID_VALUE;
    stub_block_give(&block);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    CUresult result = stub_in_context();
    size_t is_free, in_all;
    if (result)
        return result;
    stub_memory(stub_current_gpu(), &is_free, &in_all);
    if (free_bytes)
        *free_bytes = is_free;
    if (total)
        *total = in_all;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address)
{
    struct block block;
    CUresult ready = stub_ready();
    if (ready || !stub_block_around(address, &block))
        return ready ? ready : CUDA_ERROR_NOT_FOUND;
    if (base)
        *base = block.address;
    if (size)
        *size = block.size;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuPointerGetAttribute(void *value, int attribute, CUdeviceptr address)
{
    struct block block;
    CUresult ready = stub_ready();
    if (ready || !value || !stub_block_around(address, &block))
        return ready ? ready : CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case 2: *(unsigned int *)value = 2; break;             /* MEMORY_TYPE: device */
    case 3: *(CUdeviceptr *)value = address; break;        /* DEVICE_POINTER */
    case 8: *(unsigned int *)value = block.kind == BLOCK_MANAGED; break; /* IS_MANAGED */
    case 9:                                                /* DEVICE_ORDINAL */
        for (CUdevice device = 0; device < STUB_MAX_GPUS; device++)
            if (stub_gpu_of(device) == block.gpu)
                *(int *)value = device;
        break;
    case 11: *(CUdeviceptr *)value = block.address; break; /* RANGE_START_ADDR */
    case 12: *(size_t *)value = block.size; break;         /* RANGE_SIZE */
    case 17: *(void **)value = block.owner; break;         /* MEMPOOL_HANDLE */
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}

/* --- Host memory, which counts against no quota --- */

EXPORT CUresult cuMemHostAlloc(void **memory, size_t size, unsigned int flags)
{
    (void)flags;
    CUresult result = stub_in_context();
    if (result || !memory || !size)
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    *memory = malloc(size);
    return *memory ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuMemAllocHost_v2(void **memory, size_t size)
{
    return cuMemHostAlloc(memory, size, 0);
}

EXPORT CUresult cuMemFreeHost(void *memory)
{
    free(memory);
    return stub_ready();
}

/* --- IPC: the handle contains address and size. Opening it allocates nothing. --- */

EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address)
{
    struct block block;
    CUresult ready = stub_ready();
    if (ready || !handle || !stub_block_around(address, &block) || block.kind != BLOCK_LINEAR)
        return ready ? ready : CUDA_ERROR_INVALID_VALUE;
    memset(handle, 0, sizeof *handle);
    memcpy(handle->reserved, &block.size, sizeof block.size);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags)
{
    (void)flags;
    size_t size;
    CUresult result = stub_in_context();
    memcpy(&size, handle.reserved, sizeof size);
    if (result || !address || !size)
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    *address = stub_address(size);
    stub_block_add((struct block){*address, size, BLOCK_IMPORTED, stub_current_gpu(), stub_current_context(), NULL});
    return CUDA_SUCCESS;
}

EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
    struct block block;
    CUresult ready = stub_ready();
    if (ready || !stub_block_at(address, &block) || block.kind != BLOCK_IMPORTED)
        return ready ? ready : CUDA_ERROR_INVALID_VALUE;
    stub_block_remove(address, &block);
    return CUDA_SUCCESS;
}
