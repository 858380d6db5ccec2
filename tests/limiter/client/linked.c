/* Copyright: (c) openfleet.gpu contributors
 * SPDX-License-Identifier: Apache-2.0
 *
 * A program that is linked with the driver and calls dlsym in every way. argv[1] is the number of bytes to allocate.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cuInit(unsigned int);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuMemAlloc_v2(uint64_t *, size_t);
void wrapper_tell(void) __attribute__((weak));

static const char *library_of(void *function)
{
    Dl_info info;
    if (!function || !dladdr(function, &info))
        return "-";
    const char *slash = strrchr(info.dli_fname, '/');
    return slash ? slash + 1 : info.dli_fname;
}

int main(int argc, char **argv)
{
    void *context;
    uint64_t address;
    if (argc < 2 || cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context))
        return 1;
    printf("linked: %d\n", cuMemAlloc_v2(&address, strtoull(argv[1], NULL, 0)));
    if (wrapper_tell)
        wrapper_tell();
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    void *c_library = dlopen("libc.so.6", RTLD_NOW);
    printf("default: %s\n", library_of(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2")));
    printf("next of the program: %s\n", library_of(dlsym(RTLD_NEXT, "cuMemAlloc_v2")));
    printf("the driver's: %s\n", library_of(dlsym(driver, "cuMemAlloc_v2")));
    printf("the driver's cuInit: %s\n", library_of(dlsym(driver, "cuInit")));
    printf("in the C library: %s\n", library_of(dlsym(c_library, "cuMemAlloc_v2")));
    void *(*again)(void *, const char *) = (void *(*)(void *, const char *))dlsym(RTLD_DEFAULT, "dlsym");
    printf("by dlsym of dlsym: %s\n", library_of(again(driver, "cuMemAlloc_v2")));
    again = (void *(*)(void *, const char *))dlsym(c_library, "dlsym");
    printf("by the C library's: %s\n", library_of(again(driver, "cuMemAlloc_v2")));
    return 0;
}
