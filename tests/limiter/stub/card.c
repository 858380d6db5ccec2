/* Copyright: (c) openfleet.gpu contributors
 * SPDX-License-Identifier: Apache-2.0
 *
 * The shared file, which contains how many bytes each process uses on each GPU. A process holds an fcntl lock on the
 * byte of its entry. The memory of a killed process is therefore free at once, as with the kernel driver.
 */
#define _GNU_SOURCE
#include "card.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static struct stub_card *card;
static struct stub_process *me;
static int file = -1;
static pthread_mutex_t mapping = PTHREAD_MUTEX_INITIALIZER;

unsigned long long stub_setting(const char *name, unsigned long long otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

static void make(struct stub_card *new_card)
{
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&new_card->lock.mutex, &attributes);
    new_card->gpus = (uint32_t)stub_setting("STUB_GPUS", 1);
    if (new_card->gpus > STUB_MAX_GPUS)
        new_card->gpus = STUB_MAX_GPUS;
    new_card->entry_size = sizeof(struct stub_process);
    /* With a simulated NVML, the cards have the UUIDs of NVML in index order: STUB_UUIDS=GPU-...,GPU-... */
    const char *uuids = getenv("STUB_UUIDS");
    for (uint32_t i = 0; i < new_card->gpus; i++) {
        new_card->gpu[i].capacity = stub_setting("STUB_MEMORY", 16ull << 30);
        size_t length = uuids ? strcspn(uuids, ",") : 0;
        if (length > 0 && length < sizeof new_card->gpu[i].uuid) {
            memcpy(new_card->gpu[i].uuid, uuids, length);
            uuids += length + (uuids[length] == ',');
            continue;
        }
        snprintf(new_card->gpu[i].uuid, sizeof new_card->gpu[i].uuid, "GPU-%08x-0000-4000-8000-%012x", 0x5c890000u + i, i + 1);
    }
    new_card->magic = STUB_MAGIC;
}

static struct stub_card *map_card(void)
{
    const char *path = getenv("STUB_CARD");
    int flags = MAP_SHARED;
    if (path && *path) {
        /* Never closed: the stub NVML uses the file too, and closing any descriptor of it would drop this process's
         * lock. */
        file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        struct stat status;
        if (file < 0 || flock(file, LOCK_EX) || fstat(file, &status))
            return NULL;
        if ((size_t)status.st_size < sizeof(struct stub_card) && ftruncate(file, sizeof(struct stub_card)))
            return NULL;
        struct stub_card *made = mmap(NULL, sizeof *made, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (made == MAP_FAILED)
            return NULL;
        if (made->magic != STUB_MAGIC)
            make(made);
        flock(file, LOCK_UN);
        return made;
    }
    struct stub_card *made = mmap(NULL, sizeof *made, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED)
        return NULL;
    make(made);
    return made;
}

static off_t byte_of(const struct stub_process *process)
{
    /* The lock is after the end of the file, because a lock needs no bytes in the file. */
    return (off_t)sizeof(struct stub_card) + (process - card->process);
}

static bool alive(const struct stub_process *process)
{
    if (process == me || file < 0)
        return true;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte_of(process), .l_len = 1};
    /* A test by the same lock owner would not see this process's own lock, so test as a different owner. */
    return fcntl(file, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

static void recount(void)
{
    for (uint32_t g = 0; g < card->gpus; g++) {
        card->gpu[g].used = 0;
        memset(card->gpu[g].group_used, 0, sizeof card->gpu[g].group_used);
        for (int p = 0; p < STUB_MAX_PROCESSES; p++)
            if (card->process[p].pid) {
                card->gpu[g].used += card->process[p].used[g];
                card->gpu[g].group_used[card->process[p].group] += card->process[p].used[g];
            }
    }
}

void stub_card_bury(struct stub_card *locked)
{
    bool any = false;
    for (int p = 0; p < STUB_MAX_PROCESSES; p++)
        if (locked->process[p].pid && !alive(&locked->process[p])) {
            memset(&locked->process[p], 0, sizeof locked->process[p]);
            any = true;
        }
    if (any)
        recount();
}

void stub_card_lock(struct stub_card *locked)
{
    if (pthread_mutex_lock(&locked->lock.mutex) == EOWNERDEAD) {
        pthread_mutex_consistent(&locked->lock.mutex);
        recount();
    }
}

void stub_card_unlock(struct stub_card *locked)
{
    pthread_mutex_unlock(&locked->lock.mutex);
}

static int group_index(void)
{
    const char *name = getenv("STUB_GROUP");
    for (int i = 0; i < STUB_MAX_GROUPS; i++) {
        if (!card->groups[i][0])
            snprintf(card->groups[i], sizeof card->groups[i], "%s", name && *name ? name : "-");
        if (!strcmp(card->groups[i], name && *name ? name : "-"))
            return i;
    }
    return STUB_MAX_GROUPS - 1;
}

/* NVML reports host pids. If this is the host's /proc, its pids are host pids even within a pid namespace. */
static int pid_of_host(void)
{
    char text[16];
    ssize_t length = readlink("/proc/self", text, sizeof text - 1);
    text[length < 0 ? 0 : length] = '\0';
    int pid = atoi(text);
    return pid > 0 ? pid : getpid();
}

static void enter_card(void)
{
    stub_card_lock(card);
    for (int p = 0; p < STUB_MAX_PROCESSES && !me; p++)
        if (!card->process[p].pid) {
            struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte_of(&card->process[p]), .l_len = 1};
            if (file >= 0 && fcntl(file, F_SETLK, &lock))
                continue;
            me = &card->process[p];
            me->group = group_index();
            me->pid = pid_of_host();
        }
    stub_card_unlock(card);
}

struct stub_card *stub_card(bool enter)
{
    if (__builtin_expect(card && (me || !enter), 1))
        return card;
    pthread_mutex_lock(&mapping);
    if (!card)
        card = map_card();
    if (card && enter && !me)
        enter_card();
    pthread_mutex_unlock(&mapping);
    return card && (me || !enter) ? card : NULL;
}

void stub_card_contexts(int change)
{
    __atomic_add_fetch(&me->contexts, (uint64_t)(int64_t)change, __ATOMIC_RELAXED);
}

/* --- Faults: FUNCTION:N[:CODE], several with commas --- */

static struct fault { char function[64]; long at; CUresult code; long seen; } faults[16];
static int fault_count = -1;

static void read_faults(void)
{
    const char *text = getenv("STUB_FAIL");
    int count = 0;
    while (text && *text && count < 16) {
        int code = CUDA_ERROR_OUT_OF_MEMORY;
        if (sscanf(text, "%63[^:]:%ld:%d", faults[count].function, &faults[count].at, &code) >= 2)
            faults[count++].code = code;
        text = strchr(text, ',');
        text = text ? text + 1 : NULL;
    }
    fault_count = count;
}

static CUresult fault(const char *function)
{
    if (fault_count < 0)
        read_faults();
    for (int i = 0; i < fault_count; i++)
        if (!strcmp(faults[i].function, function) && ++faults[i].seen == faults[i].at)
            return faults[i].code;
    return CUDA_SUCCESS;
}

void stub_pause(const char *setting)
{
    const char *path = getenv(setting);
    int fifo = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    char byte;
    while (fifo >= 0 && read(fifo, &byte, 1) > 0)
        ;
    if (fifo >= 0)
        close(fifo);
}

/* --- Bytes --- */

CUresult stub_take(const char *function, int gpu, enum stub_kind kind, size_t bytes)
{
    if (!stub_card(true) || gpu < 0)
        return CUDA_ERROR_UNKNOWN;
    stub_card_lock(card);
    CUresult result = fault(function);
    struct stub_gpu *on = &card->gpu[gpu];
    if (result == CUDA_SUCCESS) {
        /* Dead processes only matter if memory is short, or before a new peak is recorded. They are removed
         * only then. */
        if (bytes > on->capacity || on->used > on->capacity - bytes || on->group_used[me->group] + bytes > on->group_peak[me->group])
            stub_card_bury(card);
        if (bytes > on->capacity || on->used > on->capacity - bytes)
            result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result == CUDA_SUCCESS) {
        me->used[gpu] += bytes;
        on->used += bytes;
        on->kinds[kind] += bytes;
        on->group_used[me->group] += bytes;
        if (on->used > on->peak)
            on->peak = on->used;
        if (on->group_used[me->group] > on->group_peak[me->group])
            on->group_peak[me->group] = on->group_used[me->group];
    } else {
        on->refused++;
    }
    stub_card_unlock(card);
    return result;
}

void stub_give(int gpu, enum stub_kind kind, size_t bytes)
{
    if (!stub_card(true) || gpu < 0 || !bytes)
        return;
    stub_card_lock(card);
    if (me->used[gpu] < bytes) {
        fprintf(stderr, "stub: gives back %zu bytes of GPU %d, of which it has only %llu\n", bytes, gpu, (unsigned long long)me->used[gpu]);
        abort();
    }
    me->used[gpu] -= bytes;
    card->gpu[gpu].used -= bytes;
    card->gpu[gpu].kinds[kind] -= bytes;
    card->gpu[gpu].group_used[me->group] -= bytes;
    stub_card_unlock(card);
}

void stub_memory(int gpu, size_t *free_bytes, size_t *total)
{
    stub_card_lock(card);
    stub_card_bury(card);
    *total = card->gpu[gpu].capacity;
    *free_bytes = card->gpu[gpu].capacity - card->gpu[gpu].used;
    stub_card_unlock(card);
}
