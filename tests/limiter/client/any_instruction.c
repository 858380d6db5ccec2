/* Copyright: (c) openfleet.gpu contributors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Kill processes of the tenant in the middle of a sequence of calls. Each process is killed some instructions later
 * than the one before. After each kill, check that the tenant has its whole quota again, to the byte.
 *
 *   any_instruction QUOTA SEED KILLS SEQUENCE     prints `kills N of M instructions`, or `lost after N instructions: ...`
 *
 * The victim is another process of this program. It stops before the sequence, and its parent then runs it instruction
 * by instruction with ptrace.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int any();

static void *driver;

static any *get(const char *name)
{
    any *found = (any *)dlsym(driver, name);
    if (!found) {
        fprintf(stderr, "no %s\n", name);
        exit(4);
    }
    return found;
}

static int start(void)
{
    void *context;
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    return !driver || get("cuInit")(0) || get("cuDevicePrimaryCtxRetain")(&context, 0) || get("cuCtxSetCurrent")(context);
}

struct wanted { int type, handles, where, id; void *none; uint64_t flags; };

static void sequence(const char *name, any **f)
{
    uint64_t address = 0;
    struct wanted wanted = {1, 0, 1, 0, NULL, 0};
    if (!strcmp(name, "first")) { /* the process's first call registers it in the tenant's region */
        f[0](&address, (size_t)1000);
    } else if (!strcmp(name, "linear")) {
        f[0](&address, (size_t)1000);
        f[1](address);
    } else if (!strcmp(name, "pool")) {
        f[2](&address, (size_t)1000, NULL);
        f[3](address, NULL);
    } else if (!strcmp(name, "physical")) {
        f[4](&address, (size_t)2 << 20, &wanted, 0ull);
        f[5](address);
    } else if (!strcmp(name, "refused")) {
        f[0](&address, (size_t)1 << 40);
    }
}

static int victim(const char *name)
{
    uint64_t address;
    if (start())
        return 5;
    any *f[] = {get("cuMemAlloc_v2"), get("cuMemFree_v2"), get("cuMemAllocAsync"), get("cuMemFreeAsync"), get("cuMemCreate"), get("cuMemRelease")};
    /* Initialize the stub's tables now: the first use clears them byte by byte, which takes many single steps. */
    get("cuMemAddressReserve")(&address, (size_t)2 << 20, (size_t)0, 0ull, 0ull);
    if (strcmp(name, "first")) {
        sequence(name, f); /* run the sequence once before, so that the lookups of the first call are not part of it */
        f[0](&address, (size_t)777);
    }
    ptrace(PTRACE_TRACEME, 0, NULL, NULL);
    raise(SIGSTOP);
    sequence(name, f);
    _exit(0);
}

/* Return the number of executed instructions until the kill or the end, or -1 without ptrace. */
static long kill_after(const char *self, const char *name, long instructions)
{
    int status;
    pid_t child = fork();
    if (!child) {
        execl(self, self, "victim", name, (char *)NULL);
        _exit(6);
    }
    if (waitpid(child, &status, WUNTRACED) != child || !WIFSTOPPED(status))
        return -1;
    for (long i = 0; i < instructions; i++) {
        if (ptrace(PTRACE_SINGLESTEP, child, NULL, NULL))
            return -1;
        if (waitpid(child, &status, 0) != child || WIFEXITED(status) || WIFSIGNALED(status))
            return i;
    }
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return instructions;
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "victim"))
        return victim(argv[2]);
    if (argc != 5 || start())
        return 3;
    size_t quota = strtoull(argv[1], NULL, 0);
    long seed = atol(argv[2]), kills = atol(argv[3]);
    any *allocate = get("cuMemAlloc_v2"), *release = get("cuMemFree_v2");
    /* The first run is not interrupted, and gives the length of the sequence. */
    long length = kill_after("/proc/self/exe", argv[4], 1L << 40);
    if (length < 0) {
        printf("no ptrace: %s\n", strerror(errno));
        return 0;
    }
    for (long i = 0; i < kills; i++) {
        uint64_t address;
        long instructions = i * length / kills + seed % (length / kills + 1);
        kill_after("/proc/self/exe", argv[4], instructions);
        int all = allocate(&address, quota);
        if (!all)
            release(address);
        int more = allocate(&address, quota + 1);
        if (all || more != 2) {
            printf("lost after %ld of %ld instructions: the quota %d, one byte more %d\n", instructions, length, all, more);
            return 1;
        }
    }
    printf("kills %ld of %ld instructions\n", kills, length);
    return 0;
}
