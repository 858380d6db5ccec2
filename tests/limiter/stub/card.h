/* Copyright: (c) openfleet.gpu contributors
 * SPDX-License-Identifier: Apache-2.0
 *
 * The shared file of the stub: what is on the cards, by process and by group. tests/limiter/card.py reads the same.
 */
#ifndef OPENFLEET_STUB_CARD_H
#define OPENFLEET_STUB_CARD_H

#include "stub.h"

#include <pthread.h>

#define STUB_MAGIC 0x3130647261436b53ull

struct stub_process {
    int32_t pid; /* 0: a free entry */
    int32_t group;
    uint64_t contexts;
    uint64_t used[STUB_MAX_GPUS];
};

struct stub_gpu {
    char uuid[48];
    uint64_t capacity, used, peak, refused;
    uint64_t kinds[STUB_KINDS];
    uint64_t group_used[STUB_MAX_GROUPS], group_peak[STUB_MAX_GROUPS];
};

struct stub_card {
    uint64_t magic;
    uint32_t gpus, entry_size;
    union { pthread_mutex_t mutex; char space[64]; } lock;
    char groups[STUB_MAX_GROUPS][64];
    struct stub_gpu gpu[STUB_MAX_GPUS];
    struct stub_process process[STUB_MAX_PROCESSES];
};

/* The card; NULL when its file cannot be had. The first call maps it; `enter` says whether this process is one that
 * takes memory (the driver) or only looks (NVML). */
struct stub_card *stub_card(bool enter);
/* Locks it and takes the dead out. */
void stub_card_lock(struct stub_card *card);
void stub_card_unlock(struct stub_card *card);
void stub_card_bury(struct stub_card *card);
/* Another context of this process, or one fewer. */
void stub_card_contexts(int change);

#endif
