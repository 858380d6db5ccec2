/* Copyright: (c) openfleet.gpu contributors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Simulated time: see clock.h. In programs that preload the stub, this file also replaces the C library's clocks and
 * sleeps, and its `syscall` for waits on futexes that are shared between processes.
 */
#define _GNU_SOURCE
#include "clock.h"

#include "stub.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EPOCH INT64_C(1000000000000) /* start of simulated clocks */
#define WAKE_NS 1000                 /* delay between two threads that one call wakes */

static struct world *shared;
static bool looked;
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static pthread_key_t at_thread_end;
static __thread int mine; /* index of the party + 1 */

static void die(const char *why) {
    fprintf(stderr, "stub clock: %s\n", why);
    abort();
}

/* --- the file --- */

static void leave(void *unused) {
    (void)unused;
    struct world *w = shared;
    if (!w || !mine) return;
    clock_lock(w);
    memset(&w->parties[mine - 1], 0, sizeof w->parties[0]);
    mine = 0;
    clock_unlock(w);
}

static void forked(void) { mine = 0; }

/* The real system call, because this file replaces the C library's `syscall`. */
static long kernel(long number, long a, long b, long c, long d, long e, long f) {
    long result;
#if defined(__x86_64__)
    register long fourth __asm__("r10") = d;
    register long fifth __asm__("r8") = e;
    register long sixth __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth), "r"(sixth)
                     : "rcx", "r11", "memory");
#elif defined(__aarch64__)
    register long call __asm__("x8") = number;
    register long first __asm__("x0") = a;
    register long second __asm__("x1") = b;
    register long third __asm__("x2") = c;
    register long fourth __asm__("x3") = d;
    register long fifth __asm__("x4") = e;
    register long sixth __asm__("x5") = f;
    __asm__ volatile("svc 0" : "+r"(first) : "r"(call), "r"(second), "r"(third), "r"(fourth), "r"(fifth), "r"(sixth) : "memory");
    result = first;
#else
#error "how is the kernel called on this processor?"
#endif
    if (result >= 0 || result < -4095) return result;
    errno = (int)-result;
    return -1;
}

static long futex(uint32_t *word, int operation, uint32_t value, const struct timespec *time) {
    return kernel(SYS_futex, (long)word, operation, value, (long)time, 0, 0);
}

__attribute__((destructor)) static void end_of_process(void) {
    struct world *w = shared;
    if (!w) return;
    clock_lock(w);
    for (int i = 0; i < CLOCK_PARTIES; i++)
        if (w->parties[i].pid == getpid()) memset(&w->parties[i], 0, sizeof w->parties[0]);
    gpu_forget(w, getpid());
    mine = 0;
    clock_unlock(w);
}

static struct world *open_world(const char *path) {
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || flock(fd, LOCK_EX) != 0) die("STUB_CLOCK cannot be opened");
    if (ftruncate(fd, sizeof(struct world)) != 0) die("STUB_CLOCK cannot be sized");
    struct world *w = mmap(NULL, sizeof *w, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (w == MAP_FAILED) die("STUB_CLOCK cannot be mapped");
    if (!w->made) {
        pthread_mutexattr_t attributes;
        pthread_mutexattr_init(&attributes);
        pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
        pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
        pthread_mutex_init(&w->lock, &attributes);
        w->now = EPOCH;
        w->needed = (int)stub_setting("STUB_PARTIES", 1);
        w->slice = (int64_t)stub_setting("STUB_SLICE_NS", 2000000);
        w->late = (int64_t)stub_setting("STUB_LATE_NS", 0);
        w->made = true;
    }
    flock(fd, LOCK_UN); /* close() does not release the lock, because the mapping keeps the file open */
    close(fd);
    pthread_key_create(&at_thread_end, leave);
    pthread_atfork(NULL, NULL, forked);
    return w;
}

struct world *clock_world(void) {
    if (__atomic_load_n(&looked, __ATOMIC_ACQUIRE)) return shared;
    pthread_mutex_lock(&opening);
    if (!looked) {
        const char *path = getenv("STUB_CLOCK");
        if (path && *path) shared = open_world(path);
        __atomic_store_n(&looked, true, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&opening);
    return shared;
}

/* A process that is killed while it holds the lock leaves at most a half-written operation in its own queue. The queue
 * is dropped with the process. */
void clock_lock(struct world *w) {
    int error = pthread_mutex_lock(&w->lock);
    if (error == EOWNERDEAD)
        pthread_mutex_consistent(&w->lock);
    else if (error)
        die("the lock is lost");
}

void clock_unlock(struct world *w) { pthread_mutex_unlock(&w->lock); }

struct party *clock_join(struct world *w) {
    if (mine) return &w->parties[mine - 1];
    for (int i = 0; i < CLOCK_PARTIES; i++) {
        struct party *p = &w->parties[i];
        if (p->pid) continue;
        *p = (struct party){.pid = getpid(), .tid = (int)syscall(SYS_gettid), .gpu = -1};
        mine = i + 1;
        w->seen++;
        pthread_setspecific(at_thread_end, p);
        return p;
    }
    die("too many threads");
    return NULL;
}

/* --- advancing the clock --- */

static bool can_go_on(struct world *w, struct party *p) {
    if (p->until <= w->now) return true;
    return p->gpu >= 0 && w->gpus[p->gpu].tenants[p->tenant].queues[p->stream].done >= p->done;
}

static bool anyone_runs(struct world *w) {
    if (w->seen < w->needed) return true;
    for (int i = 0; i < CLOCK_PARTIES; i++)
        if (w->parties[i].pid && !w->parties[i].waiting) return true;
    return false;
}

static bool wake(struct world *w) {
    bool any = false;
    for (int i = 0; i < CLOCK_PARTIES; i++) {
        struct party *p = &w->parties[i];
        if (!p->pid || !p->waiting || !can_go_on(w, p)) continue;
        p->waiting = false;
        any = true;
        __atomic_add_fetch(&p->wake, 1, __ATOMIC_RELEASE);
        futex(&p->wake, FUTEX_WAKE, 1, NULL);
    }
    return any;
}

static void move_on(struct world *w) {
    while (!anyone_runs(w) && !wake(w)) {
        int64_t next = INT64_MAX;
        for (int i = 0; i < CLOCK_PARTIES; i++)
            if (w->parties[i].pid && w->parties[i].until < next) next = w->parties[i].until;
        for (int i = 0; i < CLOCK_GPUS; i++) gpu_start(w, &w->gpus[i]);
        for (int i = 0; i < CLOCK_GPUS; i++) {
            int64_t time = gpu_next(w, &w->gpus[i]);
            if (time < next) next = time;
        }
        if (next == INT64_MAX) return; /* no thread is left, or all wait for work of a killed process */
        for (int i = 0; i < CLOCK_GPUS; i++) gpu_run(w, &w->gpus[i], next);
        w->now = next;
        for (int i = 0; i < CLOCK_GPUS; i++) gpu_settle(w, &w->gpus[i]);
    }
}

static bool gone(const struct party *p) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/task/%d/stat", p->pid, p->tid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return true;
    ssize_t size = read(fd, text, sizeof text - 1);
    close(fd);
    if (size <= 0) return true;
    text[size] = 0;
    const char *end = strrchr(text, ')');
    return !end || end[1] == 0 || strchr("ZX", end[2]);
}

static void bury(struct world *w) {
    for (int i = 0; i < CLOCK_PARTIES; i++) {
        struct party *p = &w->parties[i];
        if (!p->pid || i + 1 == mine || !gone(p)) continue;
        int pid = p->pid;
        memset(p, 0, sizeof *p);
        if (kill(pid, 0) != 0 || gone(&(struct party){.pid = pid, .tid = pid})) gpu_forget(w, pid);
    }
}

void clock_wait(struct world *w, int64_t until, int gpu, int tenant, int stream, uint64_t done) {
    struct party *p = clock_join(w);
    p->until = until;
    p->gpu = gpu;
    p->tenant = tenant;
    p->stream = stream;
    p->done = done;
    p->waiting = true;
    p->waits++;
    p->began = ++w->waits;
    move_on(w);
    while (p->waiting) {
        uint32_t seen = __atomic_load_n(&p->wake, __ATOMIC_ACQUIRE);
        clock_unlock(w);
        struct timespec patience = {0, 50 * 1000 * 1000};
        long result = futex(&p->wake, FUTEX_WAIT, seen, &patience);
        bool late = result != 0 && errno == ETIMEDOUT;
        clock_lock(w);
        if (late) {
            bury(w);
            move_on(w);
        }
    }
    p->gpu = -1;
}

/* --- replacements for the C library's functions --- */

static bool is_virtual(clockid_t id) {
    return id == CLOCK_MONOTONIC || id == CLOCK_MONOTONIC_RAW || id == CLOCK_MONOTONIC_COARSE || id == CLOCK_BOOTTIME;
}

static int64_t nanoseconds(const struct timespec *t) { return t->tv_sec * INT64_C(1000000000) + t->tv_nsec; }

static void sleep_until(struct world *w, int64_t time) {
    clock_lock(w);
    clock_wait(w, time, -1, 0, 0, 0);
    clock_unlock(w);
}

/* A sanitizer reads the clock before anything else works, and later while it holds locks that opening a file needs. The
 * shared file is therefore opened before the sanitizer's calls are handled here. */
static bool started;
__attribute__((constructor)) static void start(void) {
    clock_world();
    started = true;
}

EXPORT int clock_gettime(clockid_t id, struct timespec *t) {
    if (!started) return (int)syscall(SYS_clock_gettime, id, t);
    static int (*real)(clockid_t, struct timespec *);
    struct world *w = is_virtual(id) ? clock_world() : NULL;
    if (!w) {
        if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
        return real ? real(id, t) : (int)syscall(SYS_clock_gettime, id, t);
    }
    int64_t now = __atomic_load_n(&w->now, __ATOMIC_ACQUIRE);
    *t = (struct timespec){now / 1000000000, now % 1000000000};
    return 0;
}

EXPORT int clock_nanosleep(clockid_t id, int flags, const struct timespec *t, struct timespec *left) {
    struct world *w = is_virtual(id) ? clock_world() : NULL;
    if (!w) return syscall(SYS_clock_nanosleep, id, flags, t, left) == 0 ? 0 : errno;
    sleep_until(w, (flags & TIMER_ABSTIME ? nanoseconds(t) : w->now + nanoseconds(t)) + w->late);
    if (left && !(flags & TIMER_ABSTIME)) *left = (struct timespec){0, 0};
    return 0;
}

EXPORT int nanosleep(const struct timespec *t, struct timespec *left) {
    int error = clock_nanosleep(CLOCK_MONOTONIC, 0, t, left);
    if (!error) return 0;
    errno = error;
    return -1;
}

EXPORT int usleep(useconds_t microseconds) {
    return nanosleep(&(struct timespec){microseconds / 1000000, microseconds % 1000000 * 1000}, NULL);
}

/* Return how often the calling thread has slept or waited. */
EXPORT long stub_waits(void) {
    struct world *w = clock_world();
    return w && mine ? (long)w->parties[mine - 1].waits : 0;
}

/* --- replacement for the kernel's futexes between processes --- */

/* Return the position of a word in its page, which is the same in each process. Words at the same position count as
 * one, so a waiter may be woken for another word. */
static int place_of(const void *word) { return (int)((uintptr_t)word % 4096) + 1; }

/* If several threads are woken, the one that has waited longest continues first, as in the kernel. */
static void wake_waiters(struct world *w, const void *word, int most) {
    for (int n = 0; n < most; n++) {
        struct party *first = NULL;
        for (int i = 0; i < CLOCK_PARTIES; i++) {
            struct party *p = &w->parties[i];
            if (p->pid && p->waiting && p->futex == place_of(word) && !p->woken && (!first || p->began < first->began)) first = p;
        }
        if (!first) return;
        int64_t then = w->now + w->late + n * WAKE_NS;
        if (first->until > then) first->until = then;
        first->woken = true;
    }
}

static long wait_for_word(struct world *w, const uint32_t *word, uint32_t value, const struct timespec *time) {
    clock_lock(w);
    struct party *p = clock_join(w);
    if (__atomic_load_n(word, __ATOMIC_ACQUIRE) != value) {
        clock_unlock(w);
        errno = EAGAIN;
        return -1;
    }
    p->futex = place_of(word);
    p->woken = false;
    clock_wait(w, w->now + nanoseconds(time) + w->late, -1, 0, 0, 0);
    p->futex = 0;
    bool woken = p->woken;
    clock_unlock(w);
    if (woken) return 0;
    errno = ETIMEDOUT;
    return -1;
}

/* Threads outside simulated time wait in real time, and so do threads of one process for each other. */
EXPORT long syscall(long number, ...) {
    long words[6];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++) words[i] = va_arg(list, long);
    va_end(list);
    struct world *w = number == SYS_futex && started ? clock_world() : NULL;
    int operation = (int)words[1];
    if (w && operation == FUTEX_WAIT && words[3] && mine)
        return wait_for_word(w, (const uint32_t *)words[0], (uint32_t)words[2], (const struct timespec *)words[3]);
    if (w && operation == FUTEX_WAKE) {
        clock_lock(w);
        wake_waiters(w, (const void *)words[0], (int)words[2]);
        clock_unlock(w);
    }
    return kernel(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}
