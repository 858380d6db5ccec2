/* Copyright: (c) openfleet.gpu contributors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Threads that allocate and free plain, stream-ordered and physical memory in parallel.
 *
 *   threads COUNT ROUNDS QUOTA
 *
 * Sizes are up to the quota, so many calls are refused. At the end, the threads together allocate memory piece by piece
 * until none is left. The program fails if the sum is not the quota.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef int any();

static void *driver, *context;
static long rounds;
static size_t quota;
static const size_t PIECE = 64 << 10;
static pthread_barrier_t together;

static any *get(const char *name)
{
    return (any *)dlsym(driver, name);
}

static void *work(void *argument)
{
    any *allocate = get("cuMemAlloc_v2"), *give = get("cuMemFree_v2"), *later = get("cuMemAllocAsync");
    any *give_later = get("cuMemFreeAsync"), *create = get("cuMemCreate"), *release = get("cuMemRelease");
    struct { int type, handles, where, id; void *none; uint64_t flags; } wanted = {1, 0, 1, 0, NULL, 0};
    uint64_t address, handle, taken = 0;
    unsigned int seed = (unsigned int)(uintptr_t)&taken;
    get("cuCtxSetCurrent")(context);
    pthread_barrier_wait(&together);
    for (long i = 0; i < rounds; i++) {
        size_t bytes = 1 + ((size_t)rand_r(&seed) << 8) % quota;
        if (!allocate(&address, bytes))
            give(address);
        if (!later(&address, bytes, NULL))
            give_later(address, NULL);
        if (!create(&handle, (bytes + (2 << 20) - 1) >> 21 << 21, &wanted, 0ull))
            release(handle);
    }
    pthread_barrier_wait(&together);
    get("cuCtxSynchronize")();
    if (argument)
        get("cuMemPoolTrimTo")(argument, (size_t)0);
    pthread_barrier_wait(&together);
    while (!allocate(&address, PIECE))
        taken++;
    return (void *)taken;
}

int main(int argc, char **argv)
{
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (argc != 4 || !driver || get("cuInit")(0) || get("cuDevicePrimaryCtxRetain")(&context, 0))
        return 1;
    int count = atoi(argv[1]);
    void *pool = NULL, *taken;
    uint64_t sum = 0;
    rounds = atol(argv[2]);
    quota = strtoull(argv[3], NULL, 0);
    get("cuDeviceGetDefaultMemPool")(&pool, 0);
    pthread_barrier_init(&together, NULL, (unsigned int)count);
    pthread_t threads[64];
    for (int i = 0; i < count; i++)
        if (pthread_create(&threads[i], NULL, work, i ? NULL : pool))
            return 1;
    for (int i = 0; i < count; i++) {
        pthread_join(threads[i], &taken);
        sum += (uint64_t)(uintptr_t)taken;
    }
    printf("%llu bytes\n", (unsigned long long)(sum * PIECE));
    return sum * PIECE == quota ? 0 : 2;
}
