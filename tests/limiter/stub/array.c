/* Copyright: (c) openfleet.gpu contributors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Arrays and mipmapped arrays. They use the bytes of their elements, because the memory layout of real drivers is not
 * public.
 */
#include "objects.h"

#include <pthread.h>
#include <stdlib.h>

struct CUarray_st {
    struct CUarray_st *next;
    size_t size;
    int gpu;
    uint64_t context;
};

static struct CUarray_st *arrays;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static size_t element(int format)
{
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8: case CU_AD_FORMAT_SIGNED_INT8: return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16: case CU_AD_FORMAT_SIGNED_INT16: case CU_AD_FORMAT_HALF: return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32: case CU_AD_FORMAT_SIGNED_INT32: case CU_AD_FORMAT_FLOAT: return 4;
    default: return 0;
    }
}

static size_t at_least_1(size_t number)
{
    return number ? number : 1;
}

/* Return the bytes of a level. From level to level, width and height halve. Depth halves too, unless it counts
 * layers. */
static size_t level_size(const CUDA_ARRAY3D_DESCRIPTOR *wanted, unsigned int level)
{
    bool layered = wanted->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
    return at_least_1(wanted->Width >> level) * at_least_1(wanted->Height >> level)
        * at_least_1(layered ? wanted->Depth : wanted->Depth >> level) * wanted->NumChannels * element(wanted->Format);
}

static CUresult create(const char *function, CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *wanted, unsigned int levels)
{
    CUresult result = stub_in_context();
    if (result)
        return result;
    if (!array || !wanted->Width || !element(wanted->Format) || (wanted->NumChannels != 1 && wanted->NumChannels != 2 && wanted->NumChannels != 4))
        return CUDA_ERROR_INVALID_VALUE;
    size_t size = 0;
    /* A sparse or deferred array uses no memory until memory is mapped. */
    if (!(wanted->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)))
        for (unsigned int level = 0; level < levels; level++)
            size += level_size(wanted, level);
    CUarray made = calloc(1, sizeof *made);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *made = (struct CUarray_st){NULL, size, stub_current_gpu(), stub_current_context()};
    result = stub_take(function, made->gpu, STUB_ARRAY, size);
    if (result) {
        free(made);
        return result;
    }
    pthread_mutex_lock(&lock);
    made->next = arrays;
    arrays = made;
    pthread_mutex_unlock(&lock);
    *array = made;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *wanted)
{
    if (!wanted)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_ARRAY3D_DESCRIPTOR as_3d = {wanted->Width, wanted->Height, 0, wanted->Format, wanted->NumChannels, 0};
    return create(__func__, array, &as_3d, 1);
}

EXPORT CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *wanted)
{
    return wanted ? create(__func__, array, wanted, 1) : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *wanted, unsigned int levels)
{
    if (!wanted || !levels)
        return CUDA_ERROR_INVALID_VALUE;
    size_t longest = wanted->Width > wanted->Height ? wanted->Width : wanted->Height;
    if (!(wanted->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) && wanted->Depth > longest)
        longest = wanted->Depth;
    unsigned int most = 1;
    while (longest >> most)
        most++;
    return create(__func__, (CUarray *)(void *)array, wanted, levels < most ? levels : most);
}

static CUresult destroy(CUarray array)
{
    CUresult ready = stub_ready();
    if (ready)
        return ready;
    CUresult result = CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&lock);
    for (CUarray *at = &arrays; *at; at = &(*at)->next)
        if (*at == array) {
            *at = array->next;
            stub_give(array->gpu, STUB_ARRAY, array->size);
            free(array);
            result = CUDA_SUCCESS;
            break;
        }
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT CUresult cuArrayDestroy(CUarray array)
{
    return destroy(array);
}

EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    return destroy((CUarray)(void *)array);
}

void stub_arrays_of_context(uint64_t context)
{
    pthread_mutex_lock(&lock);
    for (CUarray *at = &arrays; *at;) {
        CUarray array = *at;
        if (array->context != context) {
            at = &array->next;
            continue;
        }
        *at = array->next;
        stub_give(array->gpu, STUB_ARRAY, array->size);
        free(array);
    }
    pthread_mutex_unlock(&lock);
}
