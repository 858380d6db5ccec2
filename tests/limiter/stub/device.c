/* Copyright: (c) openfleet.gpu contributors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Initialization of the driver, and the devices that a process can see.
 */
#define _GNU_SOURCE
#include "card.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { UNKNOWN, INITIALISED, FORKED };
static int phase;
static int visible[STUB_MAX_GPUS], visible_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void after_fork(void)
{
    if (phase == INITIALISED)
        phase = FORKED;
}

/* CUDA_VISIBLE_DEVICES has indexes or prefixes of UUIDs. An unknown or repeated entry ends the list. */
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

/* A callback like a profiler's (CUPTI). Each entry point calls it in the calling thread. It may call the
 * driver. */
static void (*subscriber)(void);

EXPORT void stub_subscribe(void (*callback)(void))
{
    subscriber = callback;
}

static void tell_subscriber(void)
{
    static __thread bool inside;
    if (inside)
        return;
    inside = true;
    subscriber();
    inside = false;
}

CUresult stub_ready(void)
{
    if (__builtin_expect(subscriber != NULL, 0))
        tell_subscriber();
    return __builtin_expect(phase == INITIALISED, 1) ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

int stub_gpu_of(CUdevice device)
{
    return device >= 0 && device < visible_count ? visible[device] : -1;
}

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

CUresult stub_device_known(CUdevice device, const void *answer)
{
    CUresult ready = stub_ready();
    return ready ? ready : !answer ? CUDA_ERROR_INVALID_VALUE : stub_gpu_of(device) < 0 ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    CUresult result = stub_device_known(ordinal, device);
    if (!result)
        *device = ordinal;
    return result;
}

EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
    CUresult result = stub_device_known(device, name);
    if (!result)
        snprintf(name, (size_t)length, "Stub GPU");
    return result;
}

EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    CUresult result = stub_device_known(device, uuid);
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
    CUresult result = stub_device_known(device, bytes);
    if (!result)
        *bytes = stub_card(true)->gpu[stub_gpu_of(device)].capacity;
    return result;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    CUresult result = stub_device_known(device, value);
    if (result)
        return result;
    switch (attribute) {
    case 16: *value = STUB_SMS; break; /* MULTIPROCESSOR_COUNT */
    case 39: *value = 2048; break;     /* MAX_THREADS_PER_MULTIPROCESSOR */
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
    CUresult result = stub_device_known(device, major && minor ? major : NULL);
    if (!result) {
        *major = 9;
        *minor = 0;
    }
    return result;
}

EXPORT CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice device)
{
    CUresult result = stub_device_known(device, text);
    if (!result)
        snprintf(text, (size_t)length, "00000000:%02X:00.0", stub_gpu_of(device) + 1);
    return result;
}
