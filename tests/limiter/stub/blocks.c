/* Copyright: (c) openfleet.gpu contributors
 * SPDX-License-Identifier: Apache-2.0
 *
 * A hash table with open addressing, which contains the block at each address. The address that was freed last is
 * reused first.
 */
#include "objects.h"

#include <pthread.h>
#include <stdlib.h>

enum { CLASSES = 48 };
static struct { CUdeviceptr *entries; size_t count, room; } unused[CLASSES];
static CUdeviceptr next_address = 0x7f0000000000ull;

static struct block *table;
static size_t table_size, table_used; /* used: including deleted entries */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Address ranges have sizes that are powers of two, from 512 bytes on. */
static int class_of(size_t size)
{
    int class = 9;
    while (class < CLASSES - 1 && ((size_t)1 << class) < size)
        class++;
    return class;
}

CUdeviceptr stub_address(size_t size)
{
    int class = class_of(size);
    pthread_mutex_lock(&lock);
    CUdeviceptr address;
    if (unused[class].count) {
        address = unused[class].entries[--unused[class].count];
    } else {
        size_t step = (size_t)1 << class, align = step < 2u << 20 ? step : 2u << 20;
        address = (next_address + align - 1) & ~(CUdeviceptr)(align - 1);
        next_address = address + step;
    }
    pthread_mutex_unlock(&lock);
    return address;
}

CUdeviceptr stub_low_address(size_t size)
{
    static CUdeviceptr next = 1 << 20; /* addresses here are never reused */
    CUdeviceptr address = 0;
    pthread_mutex_lock(&lock);
    if (next + size < 1ull << 32) {
        address = next;
        next += (size + 511) / 512 * 512;
    }
    pthread_mutex_unlock(&lock);
    return address;
}

static void reuse(const struct block *block)
{
    if (block->address < 1ull << 32)
        return;
    int class = class_of(block->size);
    if (unused[class].count == unused[class].room) {
        unused[class].room = unused[class].room ? unused[class].room * 2 : 64;
        unused[class].entries = realloc(unused[class].entries, unused[class].room * sizeof(CUdeviceptr));
    }
    unused[class].entries[unused[class].count++] = block->address;
}

static size_t place_of(CUdeviceptr address)
{
    return (size_t)((address >> 9) * 0x9e3779b97f4a7c15ull >> 20) & (table_size - 1);
}

static struct block *find(CUdeviceptr address)
{
    if (!table_size)
        return NULL;
    for (size_t i = place_of(address);; i = (i + 1) & (table_size - 1)) {
        if (table[i].kind == BLOCK_FREE)
            return NULL;
        if (table[i].kind != BLOCK_GONE && table[i].address == address)
            return &table[i];
    }
}

static void put(struct block block)
{
    size_t i = place_of(block.address);
    while (table[i].kind != BLOCK_FREE && table[i].kind != BLOCK_GONE)
        i = (i + 1) & (table_size - 1);
    table_used += table[i].kind == BLOCK_FREE;
    table[i] = block;
}

void stub_block_add(struct block block)
{
    pthread_mutex_lock(&lock);
    if (table_used * 2 >= table_size) {
        struct block *old = table;
        size_t old_size = table_size, live = 0;
        for (size_t i = 0; i < old_size; i++)
            live += old[i].kind > BLOCK_GONE;
        table_size = 1024;
        while (table_size < live * 4)
            table_size *= 2;
        table = calloc(table_size, sizeof *table);
        table_used = 0;
        for (size_t i = 0; i < old_size; i++)
            if (old[i].kind > BLOCK_GONE)
                put(old[i]);
        free(old);
    }
    put(block);
    pthread_mutex_unlock(&lock);
}

bool stub_block_remove(CUdeviceptr address, struct block *removed)
{
    pthread_mutex_lock(&lock);
    struct block *block = find(address);
    if (block) {
        *removed = *block;
        reuse(block);
        block->kind = BLOCK_GONE;
    }
    pthread_mutex_unlock(&lock);
    return block;
}

bool stub_block_at(CUdeviceptr address, struct block *found)
{
    pthread_mutex_lock(&lock);
    struct block *block = find(address);
    if (block)
        *found = *block;
    pthread_mutex_unlock(&lock);
    return block;
}

bool stub_block_around(CUdeviceptr address, struct block *found)
{
    bool any = false;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < table_size && !any; i++)
        if (table[i].kind > BLOCK_GONE && address >= table[i].address && address - table[i].address < table[i].size) {
            *found = table[i];
            any = true;
        }
    pthread_mutex_unlock(&lock);
    return any;
}

void stub_block_give(const struct block *block)
{
    if (block->kind == BLOCK_LINEAR || block->kind == BLOCK_MANAGED)
        stub_give(block->gpu, block->kind == BLOCK_LINEAR ? STUB_LINEAR : STUB_MANAGED, block->size);
    else if (block->kind == BLOCK_POOL)
        stub_pool_give(block->owner, block->size);
    else if (block->kind == BLOCK_GRAPH)
        stub_graph_give(block->gpu, block->size);
}

static void drop(uint64_t context, const void *owner)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < table_size; i++)
        if (table[i].kind > BLOCK_GONE && (owner ? table[i].owner == owner : table[i].context == context)) {
            stub_block_give(&table[i]);
            reuse(&table[i]);
            table[i].kind = BLOCK_GONE;
        }
    pthread_mutex_unlock(&lock);
}

void stub_blocks_of_context(uint64_t context)
{
    drop(context, NULL);
}

void stub_blocks_of_owner(const void *owner)
{
    drop(0, owner);
}
