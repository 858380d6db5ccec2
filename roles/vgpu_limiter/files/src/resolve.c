/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Who gets which function.
 *
 * dlsym and dlvsym: a name that is not ours goes to the C library's by a jump, so that RTLD_NEXT and
 * RTLD_DEFAULT still mean the caller's. For one of ours it is asked too, and its answer is replaced
 * only where it is the driver's own function: another library between may have the same name.
 *
 * cuGetProcAddress: the driver is asked first, and its answer replaced where it is the address of a
 * function that is intercepted. That settles versions and per-thread streams without a table of them.
 */
#include "internal.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <string.h>

/* Symbol versions that every C library since 2.17 has, whatever the one is that this is built with. */
#if defined(__x86_64__)
#define FIRST_GLIBC "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define FIRST_GLIBC "GLIBC_2.17"
#else
#error "which version of the C library had dlsym first on this processor?"
#endif
void *libc_dlopen(const char *, int);
int libc_dladdr(const void *, Dl_info *);
__asm__(".symver libc_dlopen, dlopen@" FIRST_GLIBC);
__asm__(".symver libc_dladdr, dladdr@" FIRST_GLIBC);

typedef void *dlsym_t(void *, const char *);
typedef void *dlvsym_t(void *, const char *, const char *);

/* What hooks.h says of each function: of the driver, of NVML, and whether it is intercepted. */
struct what {
	const char *symbol, *name;
	void *hook;			/* NULL: only called */
	int version;
	bool per_thread, nvml;
};
static const struct what WHAT[REAL_COUNT] = {
#define HOOK(s, n, v, p) [REAL_##s] = { .symbol = #s, .name = n, .hook = (void *)s, .version = v, .per_thread = p },
#define HOOK_NVML(s) [REAL_##s] = { .symbol = #s, .hook = (void *)s, .nvml = true },
#define CALLED(s) [REAL_##s] = { .symbol = #s },
#define CALLED_NVML(s) [REAL_##s] = { .symbol = #s, .nvml = true },
#include "hooks.h"
};

_Atomic(void *) vgpu_reals[REAL_COUNT];
static _Atomic(bool) resolved[2];	/* the driver's functions, and NVML's */

/* --- the C library's own dlsym and dlvsym --- */

/* Both are found by the tables of the library that has them: whoever asks the loader for them gets ours. */

/* Not strcmp: a sanitizer has its own, and calls dlsym and dlvsym before that works. */
static bool is_same(const char *a, const char *b)
{
	while (*a && *a == *b) {
		a++;
		b++;
	}
	return *a == *b;
}

struct tables {
	uintptr_t bias, base;
	const Elf64_Sym *symbols;
	const char *names;
	const uint32_t *hash;		/* DT_GNU_HASH: buckets, number of the first symbol, words and shift of the filter, ... */
};

/* The loader has added the bias to the addresses in the table, except on some systems. */
static const void *address_in(const struct tables *t, uint64_t value)
{
	return (const void *)(value < t->base ? t->bias + value : (uintptr_t)value);
}

/* `base`: where the library's file is mapped. */
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

/* A name with several versions is one function in each C library that there is. */
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
		if ((known | 1) == (hash | 1) && symbol->st_shndx != SHN_UNDEF && is_same(t.names + symbol->st_name, name))
			return (void *)(t.bias + symbol->st_value);
		if (known & 1)
			break;
	}
	return NULL;
}

/* They are where dlopen and dladdr are: in libdl.so.2 before glibc 2.34, and in libc.so.6 since. Another library may have
 * put its own function in place of one of these. */
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

static _Atomic(dlsym_t *) libc_dlsym;
static _Atomic(dlvsym_t *) libc_dlvsym;

static inline dlsym_t *real_dlsym(void)
{
	dlsym_t *found = atomic_load_explicit(&libc_dlsym, memory_order_acquire);
	if (UNLIKELY(!found)) {
		found = (dlsym_t *)in_c_library("dlsym");
		atomic_store_explicit(&libc_dlsym, found, memory_order_release);
	}
	return found;
}

static inline dlvsym_t *real_dlvsym(void)
{
	dlvsym_t *found = atomic_load_explicit(&libc_dlvsym, memory_order_acquire);
	if (UNLIKELY(!found)) {
		found = (dlvsym_t *)in_c_library("dlvsym");
		atomic_store_explicit(&libc_dlvsym, found, memory_order_release);
	}
	return found;
}

/* --- the real functions --- */

/* What has the driver's soname may be the front (front.c), whose names are ours: it says which file is the driver's. */
static void *driver_handle(void)
{
	void *handle = libc_dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
	const char *behind = handle ? real_dlsym()(handle, "openfleet_vgpu_driver") : NULL;
	return behind ? libc_dlopen(behind, RTLD_LAZY | RTLD_NOLOAD) : handle;
}

/* The library must already be in the process: by whatever path it was loaded, it has this soname. The
 * handle is kept, so that no later dlclose takes the functions away from under us. Two threads may do
 * this at once; both find the same. */
static bool resolve(bool nvml)
{
	void *handle = nvml ? libc_dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_NOLOAD) : driver_handle();
	if (!handle)
		return false;
	for (int i = 0; i < REAL_COUNT; i++)
		if (WHAT[i].nvml == nvml)
			atomic_store_explicit(&vgpu_reals[i], real_dlsym()(handle, WHAT[i].symbol), memory_order_release);
	atomic_store_explicit(&resolved[nvml], true, memory_order_release);
	return true;
}

void *vgpu_find_real(enum real which)
{
	bool nvml = WHAT[which].nvml;
	if (!atomic_load_explicit(&resolved[nvml], memory_order_acquire) && !resolve(nvml))
		return NULL;
	return atomic_load_explicit(&vgpu_reals[which], memory_order_acquire);
}

bool vgpu_load_nvml(void)
{
	if (atomic_load_explicit(&resolved[true], memory_order_acquire))
		return true;
	return libc_dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL) && resolve(true);
}

/* Stands in where the driver lacks a function, or there is no driver: whatever the arguments are. */
static CUresult no_such_driver_function(void) { return CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND; }
static nvmlReturn_t no_such_nvml_function(void) { return NVML_ERROR_FUNCTION_NOT_FOUND; }

void *vgpu_real_or_refusal(enum real which)
{
	int error = errno;
	void *found = vgpu_find_real(which);
	errno = error;
	if (found)
		return found;
	return WHAT[which].nvml ? (void *)no_such_nvml_function : (void *)no_such_driver_function;
}

/* --- dlsym and dlvsym --- */

/* All names of ours begin with cu or nvml; nearly everything that programs ask for is refused here. */
static int find_hook(const char *symbol)
{
	if (!(symbol[0] == 'c' && symbol[1] == 'u') && strncmp(symbol, "nvml", 4) != 0)
		return -1;
	for (int i = 0; i < REAL_COUNT; i++)
		if (WHAT[i].hook && strcmp(WHAT[i].symbol, symbol) == 0)
			return i;
	return -1;
}

/* The real dlsym comes last: dlerror tells of that one. A search of all that is loaded finds our own
 * name; where there is no driver it must fail as it would without us. */
static __attribute__((noinline)) void *dlsym_of_hook(void *handle, enum real which)
{
	dlsym_t *real = real_dlsym();
	void *drivers = vgpu_find_real(which);
	void *found = real(handle, WHAT[which].symbol);
	if (found == WHAT[which].hook && !drivers)
		return real(RTLD_NEXT, WHAT[which].symbol);
	return found && found == drivers ? WHAT[which].hook : found;
}

static bool is_own_search(const char *symbol) { return is_same(symbol, "dlsym") || is_same(symbol, "dlvsym"); }

static void *own_search(void *found)
{
	if (found == (void *)real_dlsym())
		return (void *)dlsym;
	return found == (void *)real_dlvsym() ? (void *)dlvsym : found;
}

static __attribute__((noinline)) void *dlsym_of_search(void *handle, const char *symbol)
{
	return own_search(real_dlsym()(handle, symbol));
}

/* RTLD_NEXT: the jump keeps the caller. One in front of us finds our function by itself, one behind
 * us asked for what is behind it. */
void *dlsym(void *handle, const char *symbol)
{
	if (handle != RTLD_NEXT) {
		if (UNLIKELY(is_own_search(symbol)))
			return dlsym_of_search(handle, symbol);
		int which = find_hook(symbol);
		if (which >= 0)
			return dlsym_of_hook(handle, which);
	}
	return real_dlsym()(handle, symbol);
}

static __attribute__((noinline)) void *dlvsym_of_hook(void *handle, enum real which, const char *version)
{
	void *drivers = vgpu_find_real(which), *found = real_dlvsym()(handle, WHAT[which].symbol, version);
	return found && found == drivers ? WHAT[which].hook : found;
}

/* Our own functions have no version, so that RTLD_NEXT passes them by: it means what is behind us for each caller. */
static __attribute__((noinline)) void *dlvsym_of_search(void *handle, const char *symbol, const char *version)
{
	return own_search(real_dlvsym()(handle, symbol, version));
}

void *dlvsym(void *handle, const char *symbol, const char *version)
{
	if (UNLIKELY(is_own_search(symbol)))
		return dlvsym_of_search(handle, symbol, version);
	int which = handle != RTLD_NEXT ? find_hook(symbol) : -1;
	if (UNLIKELY(which >= 0))
		return dlvsym_of_hook(handle, which, version);
	return real_dlvsym()(handle, symbol, version);
}

/* --- cuGetProcAddress --- */

/* Some address of the driver that is no exported function's: taken for the form of that name, version
 * and kind of stream. CUDA 13's newest is the newest form known here. */
static void *replace_by_name(const char *name, void *found, int version, uint64_t flags)
{
	enum { NEWEST = 13999 };
	Dl_info exported;
	if (!name || version > NEWEST)
		return found;
	if (libc_dladdr(found, &exported) && exported.dli_saddr == found && exported.dli_sname)
		return found;
	bool per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
	int best = -1;
	for (int i = 0; i < REAL_COUNT; i++) {
		const struct what *what = &WHAT[i];
		if (!what->hook || !what->name || strcmp(what->name, name) != 0 || what->version > version)
			continue;
		if (what->per_thread && !per_thread)
			continue;
		if (best < 0 || what->per_thread > WHAT[best].per_thread
		    || (what->per_thread == WHAT[best].per_thread && what->version > WHAT[best].version))
			best = i;
	}
	return best >= 0 && vgpu_find_real(best) ? WHAT[best].hook : found;
}

static void replace(const char *name, void **found, int version, uint64_t flags)
{
	int error = errno;
	for (int i = 0; i < REAL_COUNT; i++) {
		if (WHAT[i].hook && !WHAT[i].nvml && *found == vgpu_find_real(i)) {
			*found = WHAT[i].hook;
			errno = error;
			return;
		}
	}
	*found = replace_by_name(name, *found, version, flags);
	errno = error;
}

CUresult cuGetProcAddress(const char *name, void **found, int version, uint64_t flags)
{
	CUresult result = REAL(cuGetProcAddress)(name, found, version, flags);
	if (result == CUDA_SUCCESS && found && *found)
		replace(name, found, version, flags);
	return result;
}

CUresult cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, int *status)
{
	CUresult result = REAL(cuGetProcAddress_v2)(name, found, version, flags, status);
	if (result == CUDA_SUCCESS && found && *found)
		replace(name, found, version, flags);
	return result;
}
