/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Find dlsym and dlvsym in the symbol tables of the C library. The loader cannot be used for this, because it returns
 * this library's functions of the same name.
 */
#include "driver/loader.h"

#include <elf.h>
#include <stddef.h>
#include <stdint.h>

/* Symbol versions that every C library since 2.17 has, whatever version the build host has. */
#if defined(__x86_64__)
#define FIRST_GLIBC "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define FIRST_GLIBC "GLIBC_2.17"
#else
#error "unknown first C library version of dlsym on this processor"
#endif
void *libc_dlopen(const char *, int);
int libc_dladdr(const void *, Dl_info *);
__asm__(".symver libc_dlopen, dlopen@" FIRST_GLIBC);
__asm__(".symver libc_dladdr, dladdr@" FIRST_GLIBC);

struct tables {
	uintptr_t bias, base;
	const Elf64_Sym *symbols;
	const char *names;
	const uint32_t *hash;		/* Layout of DT_GNU_HASH: buckets, number of the first symbol, words and shift of the filter, ... */
};

/* On most systems, the loader has already added the load bias to the addresses in this table. */
static const void *address_in(const struct tables *t, uint64_t value)
{
	return (const void *)(value < t->base ? t->bias + value : (uintptr_t)value);
}

/* `base`: address where the library's file is mapped. */
static bool read_tables(struct tables *t, const void *base)
{
	const Elf64_Ehdr *head = base;
	const Elf64_Phdr *part = (const void *)((const char *)base + head->e_phoff);
	const Elf64_Dyn *dynamic = NULL;
	uint64_t first = UINT64_MAX;
	for (int i = 0; i < head->e_phnum; i++)
		if (part[i].p_type == PT_LOAD && part[i].p_vaddr < first)
			first = part[i].p_vaddr;
	*t = (struct tables){ .bias = (uintptr_t)base - (uintptr_t)first, .base = (uintptr_t)base };
	for (int i = 0; i < head->e_phnum; i++)
		if (part[i].p_type == PT_DYNAMIC)
			dynamic = (const void *)(t->bias + part[i].p_vaddr);
	for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++) {
		if (dynamic->d_tag == DT_SYMTAB)
			t->symbols = address_in(t, dynamic->d_un.d_ptr);
		else if (dynamic->d_tag == DT_STRTAB)
			t->names = address_in(t, dynamic->d_un.d_ptr);
		else if (dynamic->d_tag == DT_GNU_HASH)
			t->hash = address_in(t, dynamic->d_un.d_ptr);
	}
	return t->symbols && t->names && t->hash;
}

/* All versions of this symbol are the same function, in every C library. */
static void *defined_in(const void *base, const char *name)
{
	struct tables t;
	uint32_t hash = 5381;
	if (!read_tables(&t, base))
		return NULL;
	for (const char *letter = name; *letter; letter++)
		hash = hash * 33 + (unsigned char)*letter;
	uint32_t buckets = t.hash[0], offset = t.hash[1];
	const uint32_t *bucket = t.hash + 4 + 2 * t.hash[2], *chain = bucket + buckets;
	uint32_t i = buckets ? bucket[hash % buckets] : 0;
	for (; i >= offset && i; i++) {
		uint32_t known = chain[i - offset];
		const Elf64_Sym *symbol = &t.symbols[i];
		if ((known | 1) == (hash | 1) && symbol->st_shndx != SHN_UNDEF && loader_is_same(t.names + symbol->st_name, name))
			return (void *)(t.bias + symbol->st_value);
		if (known & 1)
			break;
	}
	return NULL;
}

/* The functions are in the library with dlopen and dladdr: libdl.so.2 before glibc 2.34, libc.so.6 since then. Another
 * library may have replaced either function. */
static void *in_c_library(const char *name)
{
	void *const beside[] = { (void *)libc_dladdr, (void *)libc_dlopen };
	void *found = NULL;
	Dl_info there;
	for (int i = 0; i < 2 && !found; i++)
		if (libc_dladdr(beside[i], &there) && there.dli_fbase)
			found = defined_in(there.dli_fbase, name);
	return found;
}

_Atomic(dlsym_t *) loader_dlsym;
_Atomic(dlvsym_t *) loader_dlvsym;

dlsym_t *loader_find_dlsym(void)
{
	dlsym_t *found = (dlsym_t *)in_c_library("dlsym");
	atomic_store_explicit(&loader_dlsym, found, memory_order_release);
	return found;
}

dlvsym_t *loader_find_dlvsym(void)
{
	dlvsym_t *found = (dlvsym_t *)in_c_library("dlvsym");
	atomic_store_explicit(&loader_dlvsym, found, memory_order_release);
	return found;
}

void *loader_open(const char *name, int flags) { return libc_dlopen(name, flags); }
bool loader_address(const void *address, Dl_info *found) { return libc_dladdr(address, found) != 0; }
