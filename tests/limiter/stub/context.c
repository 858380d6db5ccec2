/* Copyright: (c) openfleet.gpu contributors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Contexts: the primary context of each device with its references, and the context stack of each thread.
 */
#include "card.h"
#include "objects.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct CUctx_st {
    uint64_t id; /* new each time the primary context is created */
    CUdevice device;
    bool alive, primary;
    int references;
    size_t bytes;
    size_t limits[3]; /* sizes of stack, printf FIFO and malloc heap */
};

static const size_t first_limits[3] = {1024, 1 << 20, 8 << 20};

static struct CUctx_st primaries[STUB_MAX_GPUS];
static uint64_t last_id;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread struct { CUcontext stack[64]; int depth; } contexts;

static CUcontext current(void)
{
    return contexts.depth ? contexts.stack[contexts.depth - 1] : NULL;
}

int stub_current_gpu(void)
{
    CUcontext context = current();
    return context && context->alive ? stub_gpu_of(context->device) : -1;
}

uint64_t stub_current_context(void)
{
    CUcontext context = current();
    return context && context->alive ? context->id : 0;
}

static CUresult usable(void)
{
    CUresult ready = stub_ready();
    if (ready)
        return ready;
    CUcontext context = current();
    return !context ? CUDA_ERROR_INVALID_CONTEXT : context->alive ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult stub_in_context(void)
{
    return usable();
}

static CUresult come_alive(CUcontext context, CUdevice device)
{
    size_t bytes = stub_setting("STUB_CONTEXT_BYTES", 0);
    if (bytes && stub_take("cuCtxCreate", stub_gpu_of(device), STUB_CONTEXT, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    context->bytes = bytes;
    memcpy(context->limits, first_limits, sizeof first_limits);
    context->device = device;
    context->id = __atomic_add_fetch(&last_id, 1, __ATOMIC_RELAXED);
    context->alive = true;
    stub_card_contexts(1);
    return CUDA_SUCCESS;
}

static void die(CUcontext context)
{
    int gpu = stub_gpu_of(context->device);
    stub_gpu_wait(gpu);
    context->alive = false;
    stub_blocks_of_context(context->id);
    stub_arrays_of_context(context->id);
    if (context->primary) {
        stub_pools_reset(gpu);
        stub_graph_reset(gpu);
    }
    stub_give(gpu, STUB_CONTEXT, context->bytes);
    stub_card_contexts(-1);
}

static CUresult create(CUcontext *context, CUdevice device)
{
    CUresult result = stub_device_known(device, context);
    if (result)
        return result;
    CUcontext made = calloc(1, sizeof *made);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = come_alive(made, device);
    if (result || contexts.depth == 64) {
        free(made);
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    }
    contexts.stack[contexts.depth++] = *context = made;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
    (void)flags;
    return create(context, device);
}

EXPORT CUresult cuCtxCreate_v3(CUcontext *context, void *affinity, int count, unsigned int flags, CUdevice device)
{
    (void)affinity, (void)count, (void)flags;
    return create(context, device);
}

EXPORT CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned int flags, CUdevice device)
{
    (void)parameters, (void)flags;
    return create(context, device);
}

EXPORT CUresult cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device)
{
    return cuCtxCreate_v2(context, flags, device);
}

EXPORT CUresult cuCtxGetLimit(size_t *value, int limit)
{
    CUresult result = usable();
    if (result || !value)
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    if (limit < 0 || limit > 2)
        return CUDA_ERROR_NOT_SUPPORTED;
    *value = current()->limits[limit];
    return CUDA_SUCCESS;
}

/* Reserve at once what a driver may reserve later: one stack for each thread that fits on the GPU. */
EXPORT CUresult cuCtxSetLimit(int limit, size_t value)
{
    CUresult result = usable();
    if (result)
        return result;
    if (limit < 0 || limit > 2)
        return CUDA_ERROR_NOT_SUPPORTED;
    CUcontext context = current();
    size_t times = limit == 0 ? STUB_SMS * (size_t)2048 : 1, before = context->limits[limit];
    /* The memory for the initial limits is part of the context's own bytes. */
    before = before > first_limits[limit] ? before - first_limits[limit] : 0;
    size_t after = value > first_limits[limit] ? value - first_limits[limit] : 0;
    if (after > before)
        result = stub_take(__func__, stub_gpu_of(context->device), STUB_CONTEXT, (after - before) * times);
    else
        stub_give(stub_gpu_of(context->device), STUB_CONTEXT, (before - after) * times);
    if (!result) {
        context->bytes = context->bytes + after * times - before * times;
        context->limits[limit] = value;
    }
    return result;
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext context)
{
    CUresult ready = stub_ready();
    if (ready || !context || !context->alive || context->primary)
        return ready ? ready : CUDA_ERROR_INVALID_CONTEXT;
    if (current() == context)
        contexts.depth--;
    die(context); /* the handle is kept, because other threads may still have it on their stacks */
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    stub_count_call();
    CUresult ready = stub_ready();
    if (ready || !context || !context->alive || contexts.depth == 64)
        return ready ? ready : CUDA_ERROR_INVALID_CONTEXT;
    contexts.stack[contexts.depth++] = context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    stub_count_call();
    CUresult ready = stub_ready();
    if (ready || !contexts.depth)
        return ready ? ready : CUDA_ERROR_INVALID_CONTEXT;
    contexts.depth--;
    if (context)
        *context = contexts.stack[contexts.depth];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext context)
{
    CUresult ready = stub_ready();
    if (ready)
        return ready;
    if (!context) {
        contexts.depth -= contexts.depth > 0;
        return CUDA_SUCCESS;
    }
    contexts.depth += contexts.depth == 0;
    contexts.stack[contexts.depth - 1] = context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *context)
{
    stub_count_call();
    CUresult ready = stub_ready();
    if (ready || !context)
        return ready ? ready : CUDA_ERROR_INVALID_VALUE;
    *context = current();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
    stub_count_call();
    CUresult result = usable();
    if (!result)
        *device = current()->device;
    return result;
}

EXPORT CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context)
{
    CUresult result = context ? stub_ready() : usable();
    if (!result)
        *device = (context ? context : current())->device;
    return result;
}

EXPORT CUresult cuCtxGetId(CUcontext context, unsigned long long *id)
{
    CUresult result = context ? stub_ready() : usable();
    if (!result)
        *id = (context ? context : current())->id;
    return result;
}

EXPORT CUresult cuCtxSynchronize(void)
{
    CUresult result = usable();
    if (!result)
        stub_gpu_wait(stub_current_gpu());
    return result;
}

EXPORT CUresult cuCtxSynchronize_v2(CUcontext context)
{
    CUresult result = context ? stub_ready() : usable();
    if (!result)
        stub_gpu_wait(stub_gpu_of((context ? context : current())->device));
    return result;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    CUresult result = stub_device_known(device, context);
    if (result)
        return result;
    pthread_mutex_lock(&lock);
    struct CUctx_st *primary = &primaries[device];
    primary->primary = true;
    if (!primary->alive)
        result = come_alive(primary, device);
    if (!result) {
        primary->references++;
        *context = primary;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    CUresult result = stub_device_known(device, &device);
    if (result)
        return result;
    pthread_mutex_lock(&lock);
    struct CUctx_st *primary = &primaries[device];
    if (!primary->references)
        result = CUDA_ERROR_INVALID_CONTEXT;
    else if (!--primary->references && primary->alive)
        die(primary);
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    CUresult result = stub_device_known(device, &device);
    if (result)
        return result;
    pthread_mutex_lock(&lock);
    if (primaries[device].alive)
        die(&primaries[device]);
    primaries[device].references = 0;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active)
{
    CUresult result = stub_device_known(device, flags && active ? flags : NULL);
    if (!result) {
        *flags = 0;
        *active = primaries[device].alive;
    }
    return result;
}

EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags)
{
    (void)flags;
    return stub_device_known(device, &device);
}
