/* Copyright: (c) openfleet.gpu contributors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Allocate 3 MiB on the GPU, and close all descriptors except the three standard ones and the stub driver's.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(void)
{
    typedef int any();
    uint64_t address;
    void *context, *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver || ((any *)dlsym(driver, "cuInit"))(0) || ((any *)dlsym(driver, "cuDevicePrimaryCtxRetain"))(&context, 0)
        || ((any *)dlsym(driver, "cuCtxSetCurrent"))(context) || ((any *)dlsym(driver, "cuMemAlloc_v2"))(&address, (size_t)3 << 20))
        return 1;
    for (int descriptor = 3; descriptor < 65536; descriptor++) {
        char link[64], path[4096];
        snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
        ssize_t length = readlink(link, path, sizeof path - 1);
        if (length < 0)
            continue;
        path[length] = 0;
        if (strcmp(path, getenv("STUB_CARD")))
            close(descriptor);
    }
    puts("has 3 MiB");
    fflush(stdout);
    getchar();
    return 0;
}
