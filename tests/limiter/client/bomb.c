/* Copyright: (c) openfleet.gpu contributors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Fork children that fork children: bomb DEPTH BREADTH
 *
 * Each process initializes CUDA, allocates and frees memory, and ends in one of several ways without freeing the rest.
 * A parent forks before it uses CUDA, as all CUDA programs must.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int any();

static int use(unsigned int seed)
{
    uint64_t held[16] = {0};
    void *context, *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver || ((any *)dlsym(driver, "cuInit"))(0) || ((any *)dlsym(driver, "cuDevicePrimaryCtxRetain"))(&context, 0)
        || ((any *)dlsym(driver, "cuCtxSetCurrent"))(context))
        return 1;
    any *allocate = (any *)dlsym(driver, "cuMemAlloc_v2"), *release = (any *)dlsym(driver, "cuMemFree_v2");
    for (int i = 0; i < 200; i++) {
        seed = seed * 1103515245u + 12345u;
        uint64_t *at = &held[seed >> 16 & 15];
        if (*at) {
            if (release(*at))
                return 2;
            *at = 0;
        } else {
            int result = allocate(at, (size_t)1 + (seed >> 8 & 0xfffff));
            if (result && result != 2)
                return 3;
            if (result)
                *at = 0;
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    int depth = argc > 1 ? atoi(argv[1]) : 0, breadth = argc > 2 ? atoi(argv[2]) : 0;
    unsigned int seed = 1;
    int worst = 0, status, children = 0;
    for (; depth > 0; depth--) {
        int child = 0;
        for (int i = 0; i < breadth && !child; i++) {
            pid_t pid = fork();
            child = pid == 0;
            children += pid > 0;
            if (child)
                seed = seed * 31 + (unsigned int)i + 1, children = 0;
        }
        if (!child)
            break;
    }
    int result = use(seed);
    while (children-- > 0) {
        wait(&status);
        int code = WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status) == SIGKILL ? 0 : 99;
        worst = code > worst ? code : worst;
    }
    worst = result > worst ? result : worst;
    if (worst == 0 && seed % 3 == 1)
        raise(SIGKILL);
    if (seed % 3 == 2)
        _exit(worst);
    return worst;
}
