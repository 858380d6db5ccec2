/* Copyright: (c) openfleet.gpu contributors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Names from before CUDA 3.2 and launches from before CUDA 4, as in cudaTypedefs.h (PFN_..._v2000).
 */
#include "objects.h"

#include <string.h>

CUresult cuLaunchKernel(CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
                        CUstream, void **, void **);
CUresult cuMemFree_v2(CUdeviceptr);
CUresult cuMemGetInfo_v2(size_t *, size_t *);
CUresult cuDeviceTotalMem_v2(size_t *, CUdevice);
CUresult cuArrayCreate_v2(CUarray *, const CUDA_ARRAY_DESCRIPTOR *);
CUresult cuArray3DCreate_v2(CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *);

static CUresult allocate(const char *function, CUdeviceptr_v1 *address, size_t size)
{
    CUresult result = stub_in_context();
    if (result || !address || !size)
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    int gpu = stub_current_gpu();
    CUdeviceptr found = stub_low_address(size);
    if (!found)
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = stub_take(function, gpu, STUB_LINEAR, size);
    if (result)
        return result;
    *address = (CUdeviceptr_v1)found;
    stub_block_add((struct block){found, size, BLOCK_LINEAR, gpu, stub_current_context(), NULL});
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAlloc(CUdeviceptr_v1 *address, unsigned int size)
{
    return allocate(__func__, address, size);
}

EXPORT CUresult cuMemAllocPitch(CUdeviceptr_v1 *address, unsigned int *pitch, unsigned int width, unsigned int height, unsigned int element)
{
    if (!pitch || !width || !height || (element != 4 && element != 8 && element != 16))
        return CUDA_ERROR_INVALID_VALUE;
    unsigned int row = (width + 511) / 512 * 512;
    CUresult result = allocate(__func__, address, (size_t)row * height);
    if (!result)
        *pitch = row;
    return result;
}

EXPORT CUresult cuMemFree(CUdeviceptr_v1 address)
{
    return cuMemFree_v2(address);
}

/* For values above 4 GiB, the result of these functions is undocumented. The stub returns the largest
 * 32-bit number. */
static unsigned int in_32_bits(size_t number)
{
    return number > UINT32_MAX ? UINT32_MAX : (unsigned int)number;
}

EXPORT CUresult cuMemGetInfo(unsigned int *free_bytes, unsigned int *total)
{
    size_t is_free, in_all;
    CUresult result = cuMemGetInfo_v2(&is_free, &in_all);
    if (!result && free_bytes)
        *free_bytes = in_32_bits(is_free);
    if (!result && total)
        *total = in_32_bits(in_all);
    return result;
}

EXPORT CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice device)
{
    size_t whole;
    CUresult result = bytes ? cuDeviceTotalMem_v2(&whole, device) : CUDA_ERROR_INVALID_VALUE;
    if (!result)
        *bytes = in_32_bits(whole);
    return result;
}

EXPORT CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *wanted)
{
    if (!wanted)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_ARRAY_DESCRIPTOR new = {wanted->Width, wanted->Height, wanted->Format, wanted->NumChannels};
    return cuArrayCreate_v2(array, &new);
}

EXPORT CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *wanted)
{
    if (!wanted)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_ARRAY3D_DESCRIPTOR new = {wanted->Width, wanted->Height, wanted->Depth, wanted->Format, wanted->NumChannels, wanted->Flags};
    return cuArray3DCreate_v2(array, &new);
}

/* --- launches --- */

EXPORT CUresult cuLaunch(CUfunction f) { return cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL); }

EXPORT CUresult cuLaunchGrid(CUfunction f, int width, int height)
{
    return width > 0 && height > 0 ? cuLaunch(f) : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuLaunchGridAsync(CUfunction f, int width, int height, CUstream stream)
{
    return width > 0 && height > 0 ? cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL) : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned int count, unsigned int flags)
{
    (void)flags;
    if (!list || !count)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned int i = 0; i < count; i++) {
        /* "The same kernel must be launched on all devices", and no stream may be a default stream. */
        if (list[i].function != list[0].function || !list[i].hStream || list[i].hStream == CU_STREAM_LEGACY)
            return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = CUDA_SUCCESS;
    for (unsigned int i = 0; i < count && !result; i++)
        result = cuLaunchKernel(list[i].function, 1, 1, 1, 1, 1, 1, 0, list[i].hStream, NULL, NULL);
    return result;
}
