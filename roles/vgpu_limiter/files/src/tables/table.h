/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Tables of the process: the cost of each pointer and handle. The driver reuses a pointer only after it was freed. So
 * an entry is removed before the driver frees, and restored if the driver refuses. A thread that gets the same pointer
 * meanwhile finds the place free.
 */
#ifndef TABLE_H
#define TABLE_H

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/mutex.h"

/* Meaning of the fields, by table:
 *   T_POINTER  device pointer: bytes; `with` the context. From a pool (pooled): `with` the pool's block
 *   T_ARRAY, T_MIPMAP    the array: bytes; `with` the context
 *   T_POOL     pool: `with` its block; count the device's number
 *   T_HANDLE   handle of physical memory: `with` its block; count of necessary releases
 *   T_MAPPING  address: bytes; `with` the mapped block (0: memory that is not counted)
 *   T_GRAPH    executable graph: known to allocate no memory
 *   T_CONTEXT  context: reserved bytes
 *   T_BLOCK    an internal number: bytes charged. For a pool (pooled): count of its used pointers,
 *              `with` the pool (0: destroyed). For physical memory: count of handles, `with` number of mappings */
struct entry {
	uint64_t key, bytes, with;
	bool taken, pooled;
	int16_t gpu;			/* GPU's index in the region */
	uint32_t count;
};
static_assert(sizeof(struct entry) == 32, "a table is measured in entries of 32 bytes");

struct table {
	struct entry *entries;		/* NULL: empty */
	uint32_t capacity, count;
};
enum table_kind { T_POINTER, T_ARRAY, T_MIPMAP, T_POOL, T_HANDLE, T_BLOCK, T_MAPPING, T_GRAPH, T_CONTEXT, TABLE_COUNT };

struct tables {
	struct mutex lock;
	struct table table[TABLE_COUNT];
	uint64_t last_block;		/* the last number of T_BLOCK */
};

/* Requires the lock. An entry's address is valid until the table changes. */
struct entry *table_find(struct table *, uint64_t key);
struct entry *table_add(struct table *, uint64_t key);	/* existing or new entry, NULL without memory */
void table_remove(struct table *, struct entry *);
void table_clear(struct table *);

/* Both take the lock. table_put returns false without memory for the entry. *replaced is the earlier entry of the
 * key. It was freed by an unknown call, because otherwise the driver could not reuse the key. */
bool table_put(struct tables *, enum table_kind, uint64_t key, const struct entry *, struct entry *replaced);
bool take_out(struct tables *, enum table_kind, uint64_t key, struct entry *);

#endif
