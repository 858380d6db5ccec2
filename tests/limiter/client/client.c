/* Copyright: (c) openfleet.gpu contributors
 * SPDX-License-Identifier: Apache-2.0
 *
 * A CUDA program that runs commands: one call per line on standard input, one answer per line on standard output.
 *
 *   [tN] call SYMBOL ARGUMENT...             call a function found with dlsym, on thread N (0: the main thread)
 *   [tN] proc NAME VERSION FLAGS ARGUMENT... call a function found with cuGetProcAddress
 *   [tN] times COUNT SYMBOL ARGUMENT...      make the same call COUNT times, and answer how many calls succeeded
 *   find SYMBOL                              answer the address that dlsym returns, and the path of its library
 *   churn SEED BYTES                         allocate and free up to BYTES until killed
 *   fork IN OUT                              fork a child that uses these two FIFOs
 *   exit CODE
 *
 * Arguments are numbers, `&` for a number that the call writes, `*N` for N bytes that the call writes, or `@HEX` for
 * bytes that the call may change. The answer is `RESULT VALUE...` with the values after the call.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef uint64_t word;
typedef int function(word, word, word, word, word, word, word, word, word, word, word, word);

enum { ARGUMENTS = 12, THREADS = 16 };

static void *driver;
static FILE *in, *out;

static function *by_dlsym(const char *symbol)
{
    static struct { char name[64]; function *found; } cache[256];
    for (int i = 0; i < 256; i++) {
        if (!strcmp(cache[i].name, symbol))
            return cache[i].found;
        if (!cache[i].name[0]) {
            snprintf(cache[i].name, sizeof cache[i].name, "%s", symbol);
            return cache[i].found = (function *)dlsym(driver, symbol);
        }
    }
    return (function *)dlsym(driver, symbol);
}

static function *by_proc(const char *name, int version, uint64_t flags)
{
    typedef int get(const char *, void **, int, uint64_t, int *);
    get *ask = (get *)dlsym(driver, "cuGetProcAddress_v2");
    void *found = NULL;
    int status;
    return ask && !ask(name, &found, version, flags, &status) ? (function *)found : NULL;
}

struct argument { word value; unsigned char *bytes; size_t size; bool cell; };

static unsigned int digit(char c)
{
    return c <= '9' ? (unsigned int)(c - '0') : (unsigned int)(c - 'a' + 10);
}

static void read_argument(const char *text, struct argument *argument)
{
    memset(argument, 0, sizeof *argument);
    if (*text == '&' || *text == '*') {
        argument->cell = *text == '&';
        argument->size = argument->cell ? 8 : strtoul(text + 1, NULL, 0);
        argument->bytes = calloc(1, argument->size);
    } else if (*text == '@') {
        argument->size = strlen(text + 1) / 2;
        argument->bytes = calloc(1, argument->size);
        for (size_t i = 0; i < argument->size; i++)
            argument->bytes[i] = (unsigned char)(digit(text[1 + 2 * i]) << 4 | digit(text[2 + 2 * i]));
    } else {
        argument->value = strtoull(text, NULL, 0);
        return;
    }
    argument->value = (word)(uintptr_t)argument->bytes;
}

/* Call the function with the arguments in `words` and print the answer. */
static void call(function *target, char **words, int count, long times)
{
    struct argument arguments[ARGUMENTS];
    word w[ARGUMENTS] = {0};
    long good = 0;
    int result = 0;
    if (!target) {
        fprintf(out, "missing\n");
        return;
    }
    for (int i = 0; i < count; i++) {
        read_argument(words[i], &arguments[i]);
        w[i] = arguments[i].value;
    }
    for (long n = 0; n < times; n++) {
        result = target(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], w[10], w[11]);
        good += result == 0;
    }
    if (times > 1)
        fprintf(out, "%ld", good);
    else
        fprintf(out, "%d", result);
    for (int i = 0; i < count; i++) {
        struct argument *argument = &arguments[i];
        if (!argument->bytes)
            continue;
        fputc(' ', out);
        if (argument->cell) {
            uint64_t value;
            memcpy(&value, argument->bytes, sizeof value);
            fprintf(out, "%llu", (unsigned long long)value);
        } else {
            fputc('@', out);
            for (size_t n = 0; n < argument->size; n++)
                fprintf(out, "%02x", argument->bytes[n]);
        }
        free(argument->bytes);
    }
    fputc('\n', out);
}

static void churn(unsigned int seed, word most)
{
    function *allocate = by_dlsym("cuMemAlloc_v2"), *release = by_dlsym("cuMemFree_v2");
    uint64_t held[64] = {0};
    for (;;) {
        seed = seed * 1103515245u + 12345u;
        int i = seed >> 16 & 63;
        if (held[i]) {
            release(held[i], 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
            held[i] = 0;
        } else if (allocate((word)(uintptr_t)&held[i], 1 + seed % most, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)) {
            held[i] = 0;
        }
    }
}

static void go_on_as_child(const char *from, const char *to)
{
    pid_t child = fork();
    if (child > 0) {
        fprintf(out, "%d\n", child);
        return;
    }
    in = fopen(from, "r");
    out = fopen(to, "w");
    if (!in || !out)
        _exit(9);
    setvbuf(out, NULL, _IOLBF, 0);
}

static void find(const char *symbol)
{
    void *found = dlsym(driver, symbol);
    Dl_info info = {0};
    if (found)
        dladdr(found, &info);
    fprintf(out, "%llu %s\n", (unsigned long long)(uintptr_t)found, info.dli_fname ? info.dli_fname : "-");
}

static void execute(char **words, int count)
{
    if (!strcmp(words[0], "call") && count >= 2)
        call(by_dlsym(words[1]), words + 2, count - 2, 1);
    else if (!strcmp(words[0], "proc") && count >= 4)
        call(by_proc(words[1], atoi(words[2]), strtoull(words[3], NULL, 0)), words + 4, count - 4, 1);
    else if (!strcmp(words[0], "times") && count >= 3)
        call(by_dlsym(words[2]), words + 3, count - 3, atol(words[1]));
    else if (!strcmp(words[0], "find") && count == 2)
        find(words[1]);
    else if (!strcmp(words[0], "churn") && count == 3)
        churn((unsigned int)atoi(words[1]), strtoull(words[2], NULL, 0));
    else if (!strcmp(words[0], "fork") && count == 3)
        go_on_as_child(words[1], words[2]);
    else if (!strcmp(words[0], "exit") && count == 2)
        exit(atoi(words[1]));
    else
        fprintf(out, "what\n");
}

/* --- Threads: each waits for lines that are addressed to it --- */

static struct worker {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool started, busy;
    char **words;
    int count;
} workers[THREADS];

static void *work(void *argument)
{
    struct worker *me = argument;
    pthread_mutex_lock(&me->lock);
    for (;;) {
        while (!me->busy)
            pthread_cond_wait(&me->changed, &me->lock);
        execute(me->words, me->count);
        me->busy = false;
        pthread_cond_broadcast(&me->changed);
    }
    return NULL;
}

static void on_thread(struct worker *worker, char **words, int count)
{
    if (!worker->started) {
        pthread_mutex_init(&worker->lock, NULL);
        pthread_cond_init(&worker->changed, NULL);
        worker->started = !pthread_create(&worker->thread, NULL, work, worker);
    }
    pthread_mutex_lock(&worker->lock);
    worker->words = words;
    worker->count = count;
    worker->busy = true;
    pthread_cond_broadcast(&worker->changed);
    while (worker->busy)
        pthread_cond_wait(&worker->changed, &worker->lock);
    pthread_mutex_unlock(&worker->lock);
}

int main(int argc, char **argv)
{
    driver = dlopen(argc > 1 ? argv[1] : "libcuda.so.1", RTLD_NOW);
    if (!driver) {
        fprintf(stderr, "client: %s\n", dlerror());
        return 8;
    }
    in = stdin;
    out = stdout;
    setvbuf(out, NULL, _IOLBF, 0);
    char line[8192];
    while (fgets(line, sizeof line, in)) {
        char *words[32], *rest = line, *word;
        int count = 0;
        while ((word = strsep(&rest, " \n")) && count < 32)
            if (*word)
                words[count++] = word;
        if (!count)
            continue;
        int thread = words[0][0] == 't' && words[0][1] >= '0' && words[0][1] <= '9' ? atoi(words[0] + 1) : 0;
        int skip = words[0][0] == 't' && words[0][1] >= '0' && words[0][1] <= '9';
        if (thread > 0 && thread < THREADS)
            on_thread(&workers[thread], words + skip, count - skip);
        else
            execute(words + skip, count - skip);
    }
    return 0;
}
