/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Use the C library's dynamic loader, bypassing this library's dlsym and dlvsym.
 *
 * loader.c and hooks/resolve.c run before a sanitizer is initialized, so they must not call functions that sanitizers
 * replace.
 */
#ifndef LOADER_H
#define LOADER_H

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/likely.h"

typedef void *dlsym_t(void *, const char *);
typedef void *dlvsym_t(void *, const char *, const char *);

extern _Atomic(dlsym_t *) loader_dlsym;
extern _Atomic(dlvsym_t *) loader_dlvsym;
dlsym_t *loader_find_dlsym(void);
dlvsym_t *loader_find_dlvsym(void);

/* The C library's functions, which read their caller from the return address. Use a tail call, which leaves the
 * program's return address in place. */
static inline dlsym_t *real_dlsym(void)
{
	dlsym_t *found = atomic_load_explicit(&loader_dlsym, memory_order_acquire);
	return LIKELY(found) ? found : loader_find_dlsym();
}

static inline dlvsym_t *real_dlvsym(void)
{
	dlvsym_t *found = atomic_load_explicit(&loader_dlvsym, memory_order_acquire);
	return LIKELY(found) ? found : loader_find_dlvsym();
}

/* Call dlopen and dladdr. loader_address returns false if no library contains the address. */
void *loader_open(const char *name, int flags);
bool loader_address(const void *address, Dl_info *);

/* Use this instead of strcmp: sanitizers intercept strcmp, and they call dlsym and dlvsym before their strcmp works. */
static inline bool loader_is_same(const char *a, const char *b)
{
	while (*a && *a == *b) {
		a++;
		b++;
	}
	return *a == *b;
}

#endif
