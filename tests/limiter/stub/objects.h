/* Copyright: (c) openfleet.gpu contributors
 * SPDX-License-Identifier: Apache-2.0
 *
 * What the stub's memory files share: blocks by address, and what ends with a context.
 */
#ifndef OPENFLEET_STUB_OBJECTS_H
#define OPENFLEET_STUB_OBJECTS_H

#include "stub.h"

enum block_kind { BLOCK_FREE, BLOCK_GONE, BLOCK_LINEAR, BLOCK_MANAGED, BLOCK_POOL, BLOCK_RESERVED, BLOCK_IMPORTED, BLOCK_GRAPH };

struct block {
    CUdeviceptr address;
    size_t size;
    enum block_kind kind;
    int gpu;
    uint64_t context;
    void *owner; /* the pool */
};

/* CUDA_SUCCESS if the calling thread has a context that lives. */
CUresult stub_in_context(void);

/* --- blocks.c --- */

/* An address for `size` bytes, which may be one that was free'd a moment ago, as the driver's may. */
CUdeviceptr stub_address(size_t size);
/* The same below 4 GiB, for functions that know no other. 0: there is none left. */
CUdeviceptr stub_low_address(size_t size);
void stub_block_add(struct block block);
/* Takes the block that begins at `address` out; false if there is none. */
bool stub_block_remove(CUdeviceptr address, struct block *removed);
/* The block that begins at `address`. */
bool stub_block_at(CUdeviceptr address, struct block *found);
/* The block that `address` lies in. */
bool stub_block_around(CUdeviceptr address, struct block *found);
void stub_blocks_of_context(uint64_t context);
void stub_blocks_of_owner(const void *owner);
/* Gives back what a block of that kind has taken. */
void stub_block_give(const struct block *block);

/* --- array.c --- */
void stub_arrays_of_context(uint64_t context);

/* --- pool.c --- */
void stub_pools_reset(int gpu);
void stub_pool_give(void *pool, size_t size);

/* --- graph.c --- */
void stub_graph_give(int gpu, size_t size);
void stub_graph_reset(int gpu);

#endif
