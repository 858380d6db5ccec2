/* Copyright: (c) openfleet.gpu contributors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Threads that allocate and free memory in all ways at once: all_ways COUNT ROUNDS QUOTA WAYS
 *
 * WAYS has a bit for each way. Some threads free memory that others allocated, and some contexts end while they are in
 * use. At the end, all memory has been freed, and exactly the whole quota must be available.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef int any();
enum { SHARED = 16, MOST = 32 };

static any *take, *give, *take_async, *give_async, *create, *release, *reserve, *unreserve, *map, *unmap, *get_info, *set_current,
    *new_context, *end_context, *take_managed, *take_pitch, *launch, *trim, *pool_of;
static _Atomic uint64_t shared[SHARED];
static void *context;
static long rounds;
static unsigned long ways;
static atomic_int failures;

static void expect(int result, const char *what)
{
    if (result && result != 2) {
        fprintf(stderr, "%s answered %d\n", what, result);
        failures++;
    }
}

static void physical(size_t size)
{
    struct { int type, handles, where, id; void *none; uint64_t flags; } wanted = {1, 0, 1, 0, NULL, 0};
    uint64_t handle, address;
    int result = create(&handle, size, &wanted, 0ull);
    expect(result, "cuMemCreate");
    if (result)
        return;
    expect(reserve(&address, size, (size_t)0, 0ull, 0ull), "cuMemAddressReserve");
    expect(map(address, size, (size_t)0, handle, 0ull), "cuMemMap");
    expect(release(handle), "cuMemRelease");
    expect(unmap(address, size), "cuMemUnmap");
    expect(unreserve(address, size), "cuMemAddressFree");
}

static void one_way(int way, size_t size, unsigned int place)
{
    size_t pitch, is_free, total;
    uint64_t address = 0;
    void *own;
    switch (way) {
    case 0: /* into a slot from which any thread may take the allocation */
        if (!take(&address, size)) {
            uint64_t old = atomic_exchange(&shared[place], address);
            if (old)
                expect(give(old), "cuMemFree of another's");
        }
        break;
    case 1:
        if (!take_async(&address, size, NULL))
            expect(give_async(address, NULL), "cuMemFreeAsync");
        break;
    case 2:
        physical((size_t)2 << 20);
        break;
    case 3:
        expect(get_info(&is_free, &total), "cuMemGetInfo");
        failures += is_free > total;
        break;
    case 4:
        if (!take_managed(&address, size, 1u))
            expect(give(address), "cuMemFree of managed memory");
        break;
    case 5: /* freed together with its context */
        expect(new_context(&own, 0u, 0), "cuCtxCreate");
        expect(take(&address, size), "cuMemAlloc in a context of its own");
        expect(end_context(own), "cuCtxDestroy");
        break;
    case 6:
        if (!take_pitch(&address, &pitch, size, (size_t)2, 4u))
            expect(give(address), "cuMemFree of rows");
        break;
    default: /* no such kernel: the driver returns an error */
        launch(NULL, 1u, 1u, 1u, 1u, 1u, 1u, 0u, NULL, NULL, NULL);
    }
}

static void *work(void *argument)
{
    unsigned int seed = (unsigned int)(uintptr_t)argument;
    set_current(context);
    for (long i = 0; i < rounds; i++) {
        seed = seed * 1103515245u + 12345u;
        int way = seed >> 20 & 7;
        if (ways >> way & 1)
            one_way(way, 1 + (seed >> 4 & 0xffff), seed >> 24 & (SHARED - 1));
    }
    return NULL;
}

int main(int argc, char **argv)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *pool;
    if (argc != 5 || !driver || ((any *)dlsym(driver, "cuInit"))(0) || ((any *)dlsym(driver, "cuDevicePrimaryCtxRetain"))(&context, 0))
        return 1;
    int count = atoi(argv[1]) < MOST ? atoi(argv[1]) : MOST;
    size_t quota = strtoull(argv[3], NULL, 0);
    rounds = atol(argv[2]);
    ways = strtoul(argv[4], NULL, 0);
    struct { any **at; const char *name; } names[] = {
        {&take, "cuMemAlloc_v2"}, {&give, "cuMemFree_v2"}, {&take_async, "cuMemAllocAsync"}, {&give_async, "cuMemFreeAsync"},
        {&create, "cuMemCreate"}, {&release, "cuMemRelease"}, {&reserve, "cuMemAddressReserve"}, {&unreserve, "cuMemAddressFree"},
        {&map, "cuMemMap"}, {&unmap, "cuMemUnmap"}, {&get_info, "cuMemGetInfo_v2"}, {&set_current, "cuCtxSetCurrent"},
        {&new_context, "cuCtxCreate_v2"}, {&end_context, "cuCtxDestroy_v2"}, {&take_managed, "cuMemAllocManaged"},
        {&take_pitch, "cuMemAllocPitch_v2"}, {&launch, "cuLaunchKernel"}, {&trim, "cuMemPoolTrimTo"},
        {&pool_of, "cuDeviceGetDefaultMemPool"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        *names[i].at = (any *)dlsym(driver, names[i].name);
    pthread_t threads[MOST];
    for (int i = 0; i < count; i++)
        pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)(i * 7919 + 1));
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    set_current(context);
    for (int i = 0; i < SHARED; i++)
        if (shared[i])
            expect(give(shared[i]), "cuMemFree in the end");
    expect(pool_of(&pool, 0), "cuDeviceGetDefaultMemPool");
    expect(trim(pool, (size_t)0), "cuMemPoolTrimTo");
    uint64_t address;
    int more = take(&address, quota + 1), all = take(&address, quota);
    printf("failures %d, the quota %d, one byte more %d\n", failures, all, more);
    return failures || all || more != 2;
}
