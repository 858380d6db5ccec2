/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Hash tables with linear probing. Removing an entry closes the gap, so no tombstones are needed. The tables use their
 * own memory mappings, because the program may replace malloc.
 */
#include "tables/table.h"

#include <stddef.h>
#include <sys/mman.h>

enum { FIRST_CAPACITY = 128 };

/* Pointers and handles are multiples of powers of two. Use the upper bits of the product, which are well mixed. */
static uint32_t place(const struct table *table, uint64_t key)
{
	return (uint32_t)(key * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (table->capacity - 1);
}

struct entry *table_find(struct table *table, uint64_t key)
{
	if (!table->entries)
		return NULL;
	for (uint32_t i = place(table, key); table->entries[i].taken; i = (i + 1) & (table->capacity - 1))
		if (table->entries[i].key == key)
			return &table->entries[i];
	return NULL;
}

static struct entry *free_place(struct table *table, uint64_t key)
{
	uint32_t i = place(table, key);
	while (table->entries[i].taken)
		i = (i + 1) & (table->capacity - 1);
	return &table->entries[i];
}

void table_clear(struct table *table)
{
	if (table->entries)
		munmap(table->entries, table->capacity * sizeof *table->entries);
	*table = (struct table){ 0 };
}

/* The new table is excluded from fork, because a child starts with empty tables. */
static bool grow(struct table *table)
{
	struct table larger = { .capacity = table->capacity ? 2 * table->capacity : FIRST_CAPACITY, .count = table->count };
	size_t size = larger.capacity * sizeof *larger.entries;
	larger.entries = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (larger.entries == MAP_FAILED)
		return false;
	madvise(larger.entries, size, MADV_DONTFORK);
	for (uint32_t i = 0; i < table->capacity; i++)
		if (table->entries[i].taken)
			*free_place(&larger, table->entries[i].key) = table->entries[i];
	table_clear(table);
	*table = larger;
	return true;
}

struct entry *table_add(struct table *table, uint64_t key)
{
	struct entry *entry = table_find(table, key);
	if (entry)
		return entry;
	if (4 * (table->count + 1) > 3 * table->capacity && !grow(table))
		return NULL;
	entry = free_place(table, key);
	*entry = (struct entry){ .key = key, .taken = true };
	table->count++;
	return entry;
}

/* After a removal, move each following entry into the gap if its hash permits this. */
void table_remove(struct table *table, struct entry *entry)
{
	uint32_t mask = table->capacity - 1, gap = (uint32_t)(entry - table->entries);
	for (uint32_t i = (gap + 1) & mask; table->entries[i].taken; i = (i + 1) & mask) {
		uint32_t wanted = place(table, table->entries[i].key);
		if (((i - wanted) & mask) >= ((i - gap) & mask)) {
			table->entries[gap] = table->entries[i];
			gap = i;
		}
	}
	table->entries[gap] = (struct entry){ 0 };
	table->count--;
}

bool table_put(struct tables *tables, enum table_kind kind, uint64_t key, const struct entry *entry, struct entry *replaced)
{
	mutex_lock(&tables->lock);
	struct entry *there = table_add(&tables->table[kind], key);
	*replaced = (struct entry){ 0 };
	if (there) {
		*replaced = *there;
		*there = *entry;
		there->key = key;
		there->taken = true;
	}
	mutex_unlock(&tables->lock);
	return there != NULL;
}

bool take_out(struct tables *tables, enum table_kind kind, uint64_t key, struct entry *entry)
{
	mutex_lock(&tables->lock);
	struct entry *there = table_find(&tables->table[kind], key);
	if (there) {
		*entry = *there;
		table_remove(&tables->table[kind], there);
	}
	mutex_unlock(&tables->lock);
	return there != NULL;
}
