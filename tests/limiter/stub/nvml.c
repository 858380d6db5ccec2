/* Copyright: (c) openfleet.gpu contributors
 * SPDX-License-Identifier: Apache-2.0
 *
 * The stub NVML: devices, memory and processes from the stub driver's file. Types are written from the NVML API
 * reference (https://docs.nvidia.com/deploy/nvml-api/).
 *
 *   STUB_MPS=1          the processes are MPS clients
 *   STUB_GRAPHICS=1     the processes use graphics
 *   STUB_NVML_HIDES=1   NVML lists no processes, as in another pid namespace
 */
#include "card.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };

struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned int version; unsigned long long total, reserved, free, used; };
struct process_v1 { unsigned int pid; unsigned long long used; };
struct process_v2 { unsigned int pid; unsigned long long used; unsigned int gpu_instance, compute_instance; };

static struct stub_card *card;

EXPORT int nvmlInit_v2(void)
{
    card = stub_card(false);
    return card ? SUCCESS : 999;
}

EXPORT int nvmlInit(void)
{
    return nvmlInit_v2();
}

EXPORT int nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    return nvmlInit_v2();
}

EXPORT int nvmlShutdown(void)
{
    return card ? SUCCESS : UNINITIALIZED;
}

EXPORT const char *nvmlErrorString(int code)
{
    return code ? "error" : "success";
}

EXPORT int nvmlSystemGetDriverVersion(char *text, unsigned int length)
{
    snprintf(text, length, "580.00.00");
    return SUCCESS;
}

EXPORT int nvmlDeviceGetCount_v2(unsigned int *count)
{
    if (!card)
        return UNINITIALIZED;
    *count = card->gpus;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device)
{
    if (!card || index >= card->gpus)
        return card ? INVALID_ARGUMENT : UNINITIALIZED;
    *device = &card->gpu[index];
    return SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, void **device)
{
    for (unsigned int i = 0; card && i < card->gpus; i++)
        if (!strcasecmp(uuid, card->gpu[i].uuid))
            return nvmlDeviceGetHandleByIndex_v2(i, device);
    return card ? NOT_FOUND : UNINITIALIZED;
}

static int index_of(const void *device)
{
    for (unsigned int i = 0; card && i < card->gpus; i++)
        if (device == &card->gpu[i])
            return (int)i;
    return -1;
}

EXPORT int nvmlDeviceGetIndex(void *device, unsigned int *index)
{
    *index = (unsigned int)index_of(device);
    return index_of(device) < 0 ? INVALID_ARGUMENT : SUCCESS;
}

EXPORT int nvmlDeviceGetUUID(void *device, char *text, unsigned int length)
{
    int index = index_of(device);
    if (index < 0)
        return INVALID_ARGUMENT;
    snprintf(text, length, "%s", card->gpu[index].uuid);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetName(void *device, char *text, unsigned int length)
{
    snprintf(text, length, "Stub GPU");
    return index_of(device) < 0 ? INVALID_ARGUMENT : SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory)
{
    int index = index_of(device);
    if (index < 0 || !memory)
        return INVALID_ARGUMENT;
    size_t free_bytes, total;
    stub_memory(index, &free_bytes, &total);
    *memory = (struct memory){total, free_bytes, total - free_bytes};
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *memory)
{
    struct memory plain;
    if (!memory || memory->version != (sizeof *memory | 2u << 24))
        return 25; /* NVML_ERROR_ARGUMENT_VERSION_MISMATCH */
    int result = nvmlDeviceGetMemoryInfo(device, &plain);
    if (!result)
        *memory = (struct memory_v2){memory->version, plain.total, 0, plain.free, plain.used};
    return result;
}

enum kind { COMPUTE, MPS, GRAPHICS };

static enum kind kind_of_all(void)
{
    return stub_setting("STUB_MPS", 0) ? MPS : stub_setting("STUB_GRAPHICS", 0) ? GRAPHICS : COMPUTE;
}

/* MPS clients are listed as compute processes too. */
static bool is_listed(enum kind kind)
{
    return kind == kind_of_all() || (kind == COMPUTE && kind_of_all() == MPS);
}

static int list(void *device, unsigned int *count, void *infos, bool v1, enum kind kind)
{
    int index = index_of(device);
    if (index < 0 || !count || (*count && !infos))
        return INVALID_ARGUMENT;
    unsigned int found = 0, room = *count;
    stub_pause("STUB_PAUSE_NVML");
    if (is_listed(kind) && !stub_setting("STUB_NVML_HIDES", 0)) {
        stub_card_lock(card);
        stub_card_bury(card);
        for (int p = 0; p < STUB_MAX_PROCESSES; p++) {
            const struct stub_process *process = &card->process[p];
            if (!process->pid || !process->contexts)
                continue;
            if (found < room && v1)
                ((struct process_v1 *)infos)[found] = (struct process_v1){(unsigned int)process->pid, process->used[index]};
            else if (found < room)
                ((struct process_v2 *)infos)[found] = (struct process_v2){(unsigned int)process->pid, process->used[index], ~0u, ~0u};
            found++;
        }
        stub_card_unlock(card);
    }
    stub_pause("STUB_PAUSE_ANSWERED");
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

#define LISTS(name, kind) \
    EXPORT int name(void *device, unsigned int *count, void *infos) { return list(device, count, infos, true, kind); } \
    EXPORT int name##_v2(void *device, unsigned int *count, void *infos) { return list(device, count, infos, false, kind); } \
    EXPORT int name##_v3(void *device, unsigned int *count, void *infos) { return list(device, count, infos, false, kind); }

LISTS(nvmlDeviceGetComputeRunningProcesses, COMPUTE)
LISTS(nvmlDeviceGetMPSComputeRunningProcesses, MPS)
LISTS(nvmlDeviceGetGraphicsRunningProcesses, GRAPHICS)
