/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The process's own tables: what each pointer and handle has cost. The driver gives out a pointer
 * again only after it was freed, so an entry is taken out before the driver is asked to free, and put
 * back when the driver refuses: a thread that is given the same pointer meanwhile finds the place free.
 */
#ifndef ALLOCATIONS_H
#define ALLOCATIONS_H

#include "internal.h"

/* What the fields mean, by table:
 *   T_POINTER  device pointer: bytes; `with` the context. Of a pool (pooled): `with` the pool's block
 *   T_ARRAY, T_MIPMAP    the array: bytes; `with` the context
 *   T_POOL     pool: `with` its block; count the device's number
 *   T_HANDLE   handle of physical memory: `with` its block; count, how often it is to be released
 *   T_MAPPING  address: bytes; `with` the mapped block (0: memory that is not counted)
 *   T_GRAPH    executable graph: known to have no memory of its own
 *   T_CONTEXT  context: bytes that were reserved for it
 *   T_BLOCK    a number of ours: bytes charged. Of a pool (pooled): count of its pointers in use,
 *              `with` the pool (0: it is gone). Of physical memory: count of handles, `with` of mappings */
struct entry {
	uint64_t key, bytes, with;
	bool taken, pooled;
	int16_t gpu;			/* place in the region */
	uint32_t count;
};
static_assert(sizeof(struct entry) == 32, "a table is measured in entries of 32 bytes");

/* Under state->tables_lock. An entry's address holds until the table is changed. */
struct entry *table_find(struct table *, uint64_t key);
struct entry *table_add(struct table *, uint64_t key);	/* the one that is there, or a new one; NULL: no memory */
void table_remove(struct table *, struct entry *);
void table_clear(struct table *);

/* Each takes the lock itself. remember is false where there is no memory for the entry. */
bool remember(struct state *, enum table_kind, uint64_t key, const struct entry *);
bool take_out(struct state *, enum table_kind, uint64_t key, struct entry *);

/* Driver's free functions of one argument, for a key of that kind. */
#define FREE_OF(kind, symbol, key) do { \
	struct state *state_ = vgpu_state(); \
	struct entry entry_; \
	bool known_ = state_ && take_out(state_, kind, (uint64_t)(key), &entry_); \
	CUresult result_ = REAL(symbol)(key); \
	if (known_) \
		freed(state_, kind, &entry_, result_); \
	return result_; \
} while (0)

/* The driver has answered: gives back what the entry cost, or puts it back. */
void freed(struct state *, enum table_kind, const struct entry *, CUresult);
/* A pointer of a pool is free: pools.c. */
void pool_pointer_freed(struct state *, uint64_t block);

#endif
