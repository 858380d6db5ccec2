/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Decide which function a program gets when it looks one up.
 *
 * dlsym and dlvsym: RTLD_NEXT and RTLD_DEFAULT depend on the caller, which the C library reads from the return address.
 * A lookup of another name therefore ends in a tail call, which leaves the program's return address. For intercepted
 * names, the C library's result is replaced only if it is the driver's function, because another library may define the
 * same name.
 *
 * cuGetProcAddress: the driver is queried first. If its result is the address of an intercepted function, the result is
 * replaced. So versions and per-thread streams need no table.
 */
#include <errno.h>
#include <string.h>

#include "driver/loader.h"
#include "driver/reals.h"

#ifndef __OPTIMIZE__
#error "dlsym must tail-call the real dlsym, which -O0 prevents: build with -O1 or higher"
#endif

/* Properties of each intercepted function, from hooks.h. Other functions have no hook. */
struct what {
	const char *symbol, *name;
	void *hook;			/* NULL: called but not intercepted */
	int version;
	bool per_thread, nvml;
};
static const struct what WHAT[REAL_COUNT] = {
#define HOOK(s, n, v, p) [REAL_##s] = { .symbol = #s, .name = n, .hook = (void *)s, .version = v, .per_thread = p },
#define HOOK_NVML(s) [REAL_##s] = { .symbol = #s, .hook = (void *)s, .nvml = true },
#include "driver/hooks.h"
};

/* --- dlsym and dlvsym --- */

/* Find a name's hook. All intercepted names begin with cu or nvml, so this test rejects almost all other lookups. */
static int find_hook(const char *symbol)
{
	if (!(symbol[0] == 'c' && symbol[1] == 'u') && strncmp(symbol, "nvml", 4) != 0)
		return -1;
	for (int i = 0; i < REAL_COUNT; i++)
		if (WHAT[i].hook && strcmp(WHAT[i].symbol, symbol) == 0)
			return i;
	return -1;
}

/* Look up an intercepted name. Call the real dlsym last, because dlerror describes the last call. A global search finds
 * this library's own function. Without a driver, the lookup must fail as it would without this library. */
static __attribute__((noinline)) void *dlsym_of_hook(void *handle, enum real which)
{
	dlsym_t *real = real_dlsym();
	void *drivers = vgpu_find_real(which);
	void *found = real(handle, WHAT[which].symbol);
	if (found == WHAT[which].hook && !drivers)
		return real(RTLD_NEXT, WHAT[which].symbol);
	return found && found == drivers ? WHAT[which].hook : found;
}

static bool is_own_search(const char *symbol) { return loader_is_same(symbol, "dlsym") || loader_is_same(symbol, "dlvsym"); }

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

/* RTLD_NEXT means the next definition after the caller's library. With a tail call, the caller is the program and not
 * this library. So a caller that was loaded before this library finds its function, and the search from a caller that
 * was loaded later does not reach it. */
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

/* This library's functions have no symbol version. So RTLD_NEXT skips them and searches the libraries behind this
 * one, for every caller. */
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

/* Handle an address that is no exported function of the driver. Choose the hook by name, version and stream mode. For
 * versions of CUDA 13 and later, choose the newest known form. */
static void *replace_by_name(const char *name, void *found, int version, uint64_t flags)
{
	enum { NEWEST = 13999 };
	Dl_info exported;
	if (!name || version > NEWEST)
		return found;
	if (loader_address(found, &exported) && exported.dli_saddr == found && exported.dli_sname)
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
