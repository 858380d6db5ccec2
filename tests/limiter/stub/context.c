/* Copyright: (c) openfleet.gpu contributors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Start, devices and contexts: the primary one of each device with its references, and each thread's stack.
 */
#define _GNU_SOURCE
#include "card.h"
#include "objects.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct CUctx_st {
    uint64_t id; /* another one each time the primary context comes to life */
    CUdevice device;
    bool alive, primary;
    int references;
    size_t bytes;
};

enum { UNKNOWN, INITIALISED, FORKED };
static int phase;
static int visible[STUB_MAX_GPUS], visible_count;
static struct CUctx_st primaries[STUB_MAX_GPUS];
static uint64_t last_id;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread struct { CUcontext stack[64]; int depth; } contexts;

static void after_fork(void)
{
    if (phase == INITIALISED)
        phase = FORKED;
}

/* CUDA_VISIBLE_DEVICES: indexes or beginnings of UUIDs; the first that names nothing, or one named twice, ends the list. */
static void see(struct stub_card *card)
{
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    if (!text) {
        for (uint32_t i = 0; i < card->gpus; i++)
            visible[visible_count++] = (int)i;
        return;
    }
    char copy[1024], *rest = copy, *word;
    snprintf(copy, sizeof copy, "%s", text);
    while ((word = strsep(&rest, ",")) && *word) {
        int found = -1;
        for (uint32_t i = 0; i < card->gpus; i++)
            if (!strncmp(word, "GPU-", 4) ? !strncasecmp(card->gpu[i].uuid, word, strlen(word)) : atoi(word) == (int)i)
                found = (int)i;
        for (int i = 0; i < visible_count; i++)
            if (visible[i] == found)
                found = -1;
        if (found < 0)
            break;
        visible[visible_count++] = found;
    }
}

EXPORT CUresult cuInit(unsigned int flags)
{
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    CUresult result = CUDA_SUCCESS;
    struct stub_card *card = phase == FORKED ? NULL : stub_card(true);
    if (phase == FORKED)
        result = CUDA_ERROR_NOT_INITIALIZED;
    else if (!card)
        result = CUDA_ERROR_UNKNOWN;
    else if (phase == UNKNOWN) {
        see(card);
        pthread_atfork(NULL, NULL, after_fork);
        if (visible_count)
            phase = INITIALISED;
        else
            result = 100; /* CUDA_ERROR_NO_DEVICE */
    }
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult stub_ready(void)
{
    return __builtin_expect(phase == INITIALISED, 1) ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

int stub_gpu_of(CUdevice device)
{
    return device >= 0 && device < visible_count ? visible[device] : -1;
}

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

/* --- Devices --- */

EXPORT CUresult cuDriverGetVersion(int *version)
{
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = (int)stub_setting("STUB_DRIVER_VERSION", 13000);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int *count)
{
    CUresult ready = stub_ready();
    if (ready || !count)
        return ready ? ready : CUDA_ERROR_INVALID_VALUE;
    *count = visible_count;
    return CUDA_SUCCESS;
}

static CUresult device_known(CUdevice device, const void *answer)
{
    CUresult ready = stub_ready();
    return ready ? ready : !answer ? CUDA_ERROR_INVALID_VALUE : stub_gpu_of(device) < 0 ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    CUresult result = device_known(ordinal, device);
    if (!result)
        *device = ordinal;
    return result;
}

EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
    CUresult result = device_known(device, name);
    if (!result)
        snprintf(name, (size_t)length, "Stub GPU");
    return result;
}

EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    CUresult result = device_known(device, uuid);
    if (result)
        return result;
    const char *text = stub_card(true)->gpu[stub_gpu_of(device)].uuid + 4;
    for (int i = 0; i < 16; i++) {
        unsigned int byte;
        if (*text == '-')
            text++;
        sscanf(text, "%2x", &byte);
        uuid->bytes[i] = (unsigned char)byte;
        text += 2;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    return cuDeviceGetUuid_v2(uuid, device);
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    CUresult result = device_known(device, bytes);
    if (!result)
        *bytes = stub_card(true)->gpu[stub_gpu_of(device)].capacity;
    return result;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    CUresult result = device_known(device, value);
    if (result)
        return result;
    switch (attribute) {
    case 16: *value = STUB_SMS; break; /* MULTIPROCESSOR_COUNT */
    case 75: *value = 9; break;        /* COMPUTE_CAPABILITY_MAJOR */
    case 76: *value = 0; break;
    case 41:  /* UNIFIED_ADDRESSING */
    case 83:  /* MANAGED_MEMORY */
    case 89:  /* CONCURRENT_MANAGED_ACCESS */
    case 102: /* VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED */
    case 115: /* MEMORY_POOLS_SUPPORTED */ *value = 1; break;
    case 10: *value = 32; break;  /* WARP_SIZE */
    case 1: *value = 1024; break; /* MAX_THREADS_PER_BLOCK */
    default: *value = 0;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
    CUresult result = device_known(device, major && minor ? major : NULL);
    if (!result) {
        *major = 9;
        *minor = 0;
    }
    return result;
}

EXPORT CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice device)
{
    CUresult result = device_known(device, text);
    if (!result)
        snprintf(text, (size_t)length, "00000000:%02X:00.0", stub_gpu_of(device) + 1);
    return result;
}

/* --- Contexts --- */

static CUresult come_alive(CUcontext context, CUdevice device)
{
    size_t bytes = stub_setting("STUB_CONTEXT_BYTES", 0);
    if (bytes && stub_take("cuCtxCreate", stub_gpu_of(device), STUB_CONTEXT, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    context->bytes = bytes;
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
    CUresult result = device_known(device, context);
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

EXPORT CUresult cuCtxDestroy_v2(CUcontext context)
{
    CUresult ready = stub_ready();
    if (ready || !context || !context->alive || context->primary)
        return ready ? ready : CUDA_ERROR_INVALID_CONTEXT;
    if (current() == context)
        contexts.depth--;
    die(context); /* the handle is kept: other threads may still have it on their stacks */
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    CUresult ready = stub_ready();
    if (ready || !context || !context->alive || contexts.depth == 64)
        return ready ? ready : CUDA_ERROR_INVALID_CONTEXT;
    contexts.stack[contexts.depth++] = context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
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
    CUresult ready = stub_ready();
    if (ready || !context)
        return ready ? ready : CUDA_ERROR_INVALID_VALUE;
    *context = current();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
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
    CUresult result = device_known(device, context);
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
    CUresult result = device_known(device, &device);
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
    CUresult result = device_known(device, &device);
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
    CUresult result = device_known(device, flags && active ? flags : NULL);
    if (!result) {
        *flags = 0;
        *active = primaries[device].alive;
    }
    return result;
}

EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags)
{
    (void)flags;
    return device_known(device, &device);
}
