/* Copyright: (c) openfleet.gpu contributors
 * SPDX-License-Identifier: Apache-2.0
 *
 * A library that is loaded before or after the limiter and wraps a driver function, as profilers do. It finds the next
 * definition with dlsym(RTLD_NEXT) and prints it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef int allocate(uint64_t *, size_t);

static const char *library_of(void *function)
{
    Dl_info info;
    if (!function || !dladdr(function, &info))
        return "-";
    const char *slash = strrchr(info.dli_fname, '/');
    return slash ? slash + 1 : info.dli_fname;
}

int cuMemAlloc_v2(uint64_t *address, size_t size)
{
    void *first = dlsym(RTLD_NEXT, "cuMemAlloc_v2"), *second = dlsym(RTLD_NEXT, "cuMemAlloc_v2");
    printf("next of the wrapper: %s %s\n", library_of(first), first == second ? "twice" : "once");
    return first ? ((allocate *)first)(address, size) : -1;
}

void wrapper_tell(void)
{
    void *first = dlsym(RTLD_NEXT, "cuMemAlloc_v2"), *second = dlsym(RTLD_NEXT, "cuMemAlloc_v2");
    printf("behind the wrapper: %s %s\n", library_of(first), first == second ? "twice" : "once");
    void *nothing = dlsym(RTLD_NEXT, "noSuchThing");
    const char *error = dlerror();
    printf("nothing: %s, %s\n", nothing ? "found" : "not found", error && strstr(error, "noSuchThing") ? "and said so" : "silently");
    printf("next malloc of the wrapper: %s\n", library_of(dlsym(RTLD_NEXT, "malloc")));
    printf("default malloc: %s\n", library_of(dlsym(RTLD_DEFAULT, "malloc")));
}
