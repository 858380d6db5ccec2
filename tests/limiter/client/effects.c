/* Copyright: (c) openfleet.gpu contributors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Use CUDA, and print all process state that a library could change, before and after each call. A test compares the
 * outputs with and without the limiter.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

extern char **environ;

static int entries(const char *folder)
{
    DIR *directory = opendir(folder);
    int count = 0;
    while (directory && readdir(directory))
        count++;
    closedir(directory);
    return count - 3; /* without `.`, `..`, and the descriptor of the folder itself */
}

static void tell(const char *when)
{
    mode_t mask = umask(0);
    umask(mask);
    sigset_t blocked;
    sigprocmask(SIG_BLOCK, NULL, &blocked);
    unsigned long handlers = 0, masked = 0, variables = 5381;
    for (int n = 1; n < 65; n++) {
        struct sigaction action;
        if (!sigaction(n, NULL, &action) && (action.sa_handler != SIG_DFL || action.sa_flags))
            handlers |= 1ul << (n - 1);
        masked |= (unsigned long)sigismember(&blocked, n) << (n - 1);
    }
    for (char **variable = environ; *variable; variable++)
        for (const char *c = *variable; *c && strncmp(*variable, "LD_PRELOAD=", 11); c++)
            variables = variables * 33 + (unsigned char)*c;
    char folder[4096];
    printf("%s: umask %o handlers %lx masked %lx environment %lx descriptors %d threads %d folder %s nice %d cpus %d\n", when,
           (unsigned int)mask, handlers, masked, variables, entries("/proc/self/fd"), entries("/proc/self/task") + 1,
           getcwd(folder, sizeof folder), getpriority(PRIO_PROCESS, 0), sched_getscheduler(0));
}

static void at_the_end(void)
{
    tell("atexit");
}

int main(int argc, char **argv)
{
    typedef int any();
    uint64_t address = 0, handle = 0;
    void *context = NULL;
    size_t is_free, total;
    atexit(at_the_end);
    umask(0137);
    signal(SIGUSR1, SIG_IGN);
    tell("start");
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    tell("loaded");
#define CALL(name, ...) do { \
        any *function = (any *)dlsym(driver, #name); \
        errno = 77; \
        int result = function(__VA_ARGS__); \
        printf("%s: %d errno %d\n", #name, result, errno); \
        tell(#name); \
    } while (0)
    CALL(cuInit, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, 0);
    CALL(cuCtxSetCurrent, context);
    CALL(cuMemAlloc_v2, &address, (size_t)4096);
    CALL(cuMemGetInfo_v2, &is_free, &total);
    CALL(cuMemFree_v2, address);
    CALL(cuMemAllocAsync, &address, (size_t)4096, NULL);
    CALL(cuMemFreeAsync, address, NULL);
    struct { int type, handles, where, id; void *none; uint64_t flags; } wanted = {1, 0, 1, 0, NULL, 0};
    CALL(cuMemCreate, &handle, (size_t)2 << 20, &wanted, 0ull);
    CALL(cuMemRelease, handle);
    CALL(cuLaunchKernel, NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    fflush(stdout);
    return argc > 1 ? atoi(argv[1]) : 0;
}
