/* Copyright: (c) openfleet.gpu contributors
 * SPDX-License-Identifier: Apache-2.0
 *
 * A program that contains a profiler: callbacks QUOTA
 *
 * Each entry point of the driver calls a callback, also if the limiter calls the entry point. The callback allocates
 * and frees memory in every way. At the end, the whole quota must be available.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int any();
enum { MIB = 1 << 20 };

static void *driver, *pool;
static unsigned long called;

static any *named(const char *name)
{
    any *found = (any *)dlsym(driver, name);
    if (!found) {
        fprintf(stderr, "there is no %s\n", name);
        exit(2);
    }
    return found;
}

static void need(int result, const char *what)
{
    if (result) {
        fprintf(stderr, "%s answered %d\n", what, result);
        exit(3);
    }
}

/* Free everything that was allocated. It is no error if an allocation was refused. */
static void callback(void)
{
    uint64_t address;
    size_t is_free, total;
    called++;
    if (!named("cuMemAllocAsync")(&address, (size_t)MIB, NULL))
        need(named("cuMemFreeAsync")(address, NULL), "cuMemFreeAsync in a callback");
    if (pool && !named("cuMemAllocFromPoolAsync")(&address, (size_t)MIB, pool, NULL))
        need(named("cuMemFreeAsync")(address, NULL), "cuMemFreeAsync in a callback");
    if (!named("cuMemAlloc_v2")(&address, (size_t)MIB))
        need(named("cuMemFree_v2")(address), "cuMemFree in a callback");
    if (!named("cuMemAlloc_v2")(&address, (size_t)1 << 40))
        exit(4);
    need(named("cuMemGetInfo_v2")(&is_free, &total), "cuMemGetInfo in a callback");
    if (pool)
        need(named("cuMemPoolTrimTo")(pool, (size_t)0), "cuMemPoolTrimTo in a callback");
    need(named("cuDeviceGraphMemTrim")(0), "cuDeviceGraphMemTrim in a callback");
}

int main(int argc, char **argv)
{
    struct { int type, handles, where, id; void *none; size_t most; unsigned short usage; unsigned char rest[54]; } wanted;
    uint64_t address, other;
    size_t quota = argc > 1 ? strtoull(argv[1], NULL, 0) : 0, is_free = 0, total;
    void *context, *graph, *exec;
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver || !quota)
        return 1;
    need(named("cuInit")(0), "cuInit");
    need(named("cuDevicePrimaryCtxRetain")(&context, 0), "cuDevicePrimaryCtxRetain");
    need(named("cuCtxSetCurrent")(context), "cuCtxSetCurrent");
    memset(&wanted, 0, sizeof wanted);
    wanted.type = wanted.where = 1;
    need(named("cuMemPoolCreate")(&pool, &wanted), "cuMemPoolCreate");
    named("stub_subscribe")(callback);
    for (int i = 0; i < 3; i++) {
        need(named("cuMemAllocAsync")(&address, (size_t)4 * MIB, NULL), "cuMemAllocAsync");
        need(named("cuMemAllocFromPoolAsync")(&other, (size_t)4 * MIB, pool, NULL), "cuMemAllocFromPoolAsync");
        /* This allocation is refused, although all pools have released their unused memory. */
        if (named("cuMemAlloc_v2")(&context, quota) != 2)
            return 5;
        need(named("cuMemFreeAsync")(address, NULL), "cuMemFreeAsync");
        need(named("cuMemFree_v2")(other), "cuMemFree of a pool's");
        need(named("cuGraphCreate")(&graph, 0), "cuGraphCreate");
        need(named("cuGraphInstantiateWithFlags")(&exec, graph, 0ull), "cuGraphInstantiateWithFlags");
        need(named("cuGraphUpload")(exec, NULL), "cuGraphUpload");
        need(named("cuGraphLaunch")(exec, NULL), "cuGraphLaunch");
        need(named("cuGraphExecDestroy")(exec), "cuGraphExecDestroy");
    }
    named("stub_subscribe")(NULL);
    void *own = pool;
    need(named("cuMemPoolDestroy")(own), "cuMemPoolDestroy");
    need(named("cuCtxSynchronize")(), "cuCtxSynchronize");
    need(named("cuDeviceGetDefaultMemPool")(&own, 0), "cuDeviceGetDefaultMemPool");
    need(named("cuMemPoolTrimTo")(own, (size_t)0), "cuMemPoolTrimTo");
    need(named("cuMemGetInfo_v2")(&is_free, &total), "cuMemGetInfo");
    printf("%lu callbacks, %zu of %zu bytes are free\n", called, is_free, total);
    return is_free == quota && total == quota && called > 20 ? 0 : 6;
}
