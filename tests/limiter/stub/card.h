/* Copyright: (c) openfleet.gpu contributors
 * SPDX-License-Identifier: Apache-2.0
 *
 * The stub's shared file: memory use by process and by group. tests/limiter/card.py reads the same format.
 */
#ifndef OPENFLEET_STUB_CARD_H
#define OPENFLEET_STUB_CARD_H

#include "stub.h"

#include <pthread.h>

#define STUB_MAGIC 0x3130647261436b53ull

struct stub_process {
    int32_t pid; /* 0: unused entry */
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

/* Return the card, or NULL if its file cannot be used. The first call maps the file. `enter` is true for processes that
 * allocate memory (the driver) and false for readers (NVML). */
struct stub_card *stub_card(bool enter);
/* Lock the card and remove dead processes. */
void stub_card_lock(struct stub_card *card);
void stub_card_unlock(struct stub_card *card);
void stub_card_bury(struct stub_card *card);
/* Change the number of this process's contexts. */
void stub_card_contexts(int change);

#endif
