/* Copyright: (c) openfleet.gpu contributors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Interface between the stub's memory files: blocks by address, and cleanup of a context's objects.
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

/* Return CUDA_SUCCESS if the calling thread has a valid context. */
CUresult stub_in_context(void);

/* --- blocks.c --- */

/* Return an address for `size` bytes. As with the driver, it may be an address that was just freed. */
CUdeviceptr stub_address(size_t size);
/* Return a free address below 4 GiB, for functions with 32-bit pointers. Returns 0 if there is none. */
CUdeviceptr stub_low_address(size_t size);
void stub_block_add(struct block block);
/* Remove the block that starts at `address`. Returns false if there is none. */
bool stub_block_remove(CUdeviceptr address, struct block *removed);
/* Find the block that starts at `address`. */
bool stub_block_at(CUdeviceptr address, struct block *found);
/* Find the block that contains `address`. */
bool stub_block_around(CUdeviceptr address, struct block *found);
void stub_blocks_of_context(uint64_t context);
void stub_blocks_of_owner(const void *owner);
/* Free the memory of a block. */
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
