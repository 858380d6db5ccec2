/* Copyright: (c) openfleet.gpu contributors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Measure how many nanoseconds a launch takes, and an allocation together with its free. Prints `LAUNCH ALLOC_FREE`.
 *
 * Each value is the minimum of many batches, which is most accurate on a busy machine.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

typedef int allocate(uint64_t *, size_t);
typedef int release(uint64_t);
typedef int launch(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

enum { BATCHES = 400, CALLS = 500 };

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

int main(void)
{
    typedef int any();
    void *context, *module = NULL, *function = NULL, *driver = dlopen("libcuda.so.1", RTLD_NOW);
    uint64_t address;
    double launches = 1e9, pairs = 1e9;
    if (!driver || ((any *)dlsym(driver, "cuInit"))(0) || ((any *)dlsym(driver, "cuDevicePrimaryCtxRetain"))(&context, 0)
        || ((any *)dlsym(driver, "cuCtxSetCurrent"))(context) || ((any *)dlsym(driver, "cuModuleLoadData"))(&module, "x")
        || ((any *)dlsym(driver, "cuModuleGetFunction"))(&function, module, "kernel_0"))
        return 1;
    allocate *take = (allocate *)dlsym(driver, "cuMemAlloc_v2");
    release *give = (release *)dlsym(driver, "cuMemFree_v2");
    launch *start = (launch *)dlsym(driver, "cuLaunchKernel");
    for (int batch = 0; batch < BATCHES; batch++) {
        double began = now();
        for (int i = 0; i < CALLS; i++)
            if (start(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL))
                return 2;
        double each = (now() - began) / CALLS;
        launches = each < launches ? each : launches;
        began = now();
        for (int i = 0; i < CALLS; i++)
            if (take(&address, 4096) || give(address))
                return 3;
        each = (now() - began) / CALLS;
        pairs = each < pairs ? each : pairs;
    }
    printf("%.2f %.2f\n", launches, pairs);
    return 0;
}
