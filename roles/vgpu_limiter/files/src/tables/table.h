/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The process's tables. They store the cost of each pointer and handle. As soon as the driver has freed a pointer,
 * another thread may get the same value. So an entry is removed before the driver call that frees the pointer, and
 * restored if the driver refuses. A thread that gets the same value in the meantime finds no old entry.
 */
#ifndef TABLE_H
#define TABLE_H

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/mutex.h"

/* Meaning of the fields in each table:
 *   T_POINTER  device pointer: `bytes`. `with` is the context. If the memory is from a pool (`pooled`): the pool's block
 *   T_ARRAY, T_MIPMAP    array: `bytes`. `with` is the context
 *   T_POOL     pool: `with` is its block, `count` the device's number
 *   T_HANDLE   handle of physical memory: `with` is its block, `count` the number of releases needed
 *   T_MAPPING  address: `bytes`. `with` is the mapped block (0: memory that is not charged)
 *   T_GRAPH    executable graph that is known to allocate no memory
 *   T_CONTEXT  context: reserved `bytes`
 *   T_BLOCK    internal number: charged `bytes`. For a pool (`pooled`): `count` is the number of its used pointers,
 *              `with` the pool (0: destroyed). For physical memory: `count` is the number of handles, `with` the
 *              number of mappings */
struct entry {
	uint64_t key, bytes, with;
	bool taken, pooled;
	int16_t gpu;			/* index of the GPU in the region */
	uint32_t count;
};
static_assert(sizeof(struct entry) == 32, "a table is measured in entries of 32 bytes");

struct table {
	struct entry *entries;		/* NULL: the table is empty */
	uint32_t capacity, count;
};
enum table_kind { T_POINTER, T_ARRAY, T_MIPMAP, T_POOL, T_HANDLE, T_BLOCK, T_MAPPING, T_GRAPH, T_CONTEXT, TABLE_COUNT };

struct tables {
	struct mutex lock;
	struct table table[TABLE_COUNT];
	uint64_t last_block;		/* number of the newest block in T_BLOCK */
};

/* Find an entry. Requires the lock. The entry's address is valid until the table changes. */
struct entry *table_find(struct table *, uint64_t key);
struct entry *table_add(struct table *, uint64_t key);	/* returns the existing entry or a new one. NULL without memory */
void table_remove(struct table *, struct entry *);
void table_clear(struct table *);

/* Both functions take the lock. table_put returns false if there is no memory for the entry. *replaced is the
 * earlier entry of the key. If there is one, a call that is not hooked freed it, because otherwise the driver could
 * not reuse the key. */
bool table_put(struct tables *, enum table_kind, uint64_t key, const struct entry *, struct entry *replaced);
bool take_out(struct tables *, enum table_kind, uint64_t key, struct entry *);

#endif
