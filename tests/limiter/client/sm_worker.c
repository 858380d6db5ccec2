/* Copyright: (c) openfleet.gpu contributors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Launch kernels on the stub GPU for a time, and print what the GPU did for this process.
 *
 * With each report, and at the end, the program prints a line `seconds busy_ns launches calls parted waits`. `calls`
 * are the driver calls of the limiter. `parted` are dependent launches that an event separates from the previous
 * launch. `waits` is how often the first thread has slept or waited. With `--time N`, the host time of a launch is
 * printed instead, measured with empty kernels.
 */
#define _GNU_SOURCE
#include "../stub/cuda.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LAUNCH CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **
CUresult cuInit(unsigned);
CUresult cuDeviceGet(CUdevice *, int);
CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuCtxCreate_v2(CUcontext *, unsigned, CUdevice);
CUresult cuCtxDestroy_v2(CUcontext);
CUresult cuCtxSynchronize(void);
CUresult cuLaunch(CUfunction);
CUresult cuLaunchGrid(CUfunction, int, int);
CUresult cuLaunchGridAsync(CUfunction, int, int, CUstream);
CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *, unsigned, unsigned);
CUresult cuStreamCreate(CUstream *, unsigned);
CUresult cuStreamSynchronize(CUstream);
CUresult cuStreamBeginCapture_v2(CUstream, int);
CUresult cuStreamEndCapture(CUstream, CUgraph *);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *, CUgraph, unsigned long long);
CUresult cuModuleLoadData(CUmodule *, const void *);
CUresult cuModuleGetFunction(CUfunction *, CUmodule, const char *);
CUresult cuLaunchKernel(LAUNCH, void **);
CUresult cuLaunchKernel_ptsz(LAUNCH, void **);
CUresult cuLaunchCooperativeKernel(LAUNCH);
CUresult cuLaunchCooperativeKernel_ptsz(LAUNCH);
CUresult cuLaunchKernelEx(const CUlaunchConfig *, CUfunction, void **, void **);
CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *, CUfunction, void **, void **);
CUresult cuGraphLaunch(CUgraphExec, CUstream);
CUresult cuGraphLaunch_ptsz(CUgraphExec, CUstream);
int64_t stub_busy_ns(int gpu);
long stub_calls(void);
long stub_parted(void);
long stub_waits(void);

enum { MAX_KERNELS = 128, MAX_STREAMS = 16, MAX_THREADS = 8 };
static double seconds = 1, start, report_every, rename_at, capture_at;
static const char *form = "kernel", *rename_from, *rename_to, *poke_file, *poke_value, *run_file;
static long long poke_offset;
static long die_after, time_launches, fresh_context, steps;
/* `contexts` is the number of contexts. Each context gets one launch, and the last context gets all other launches.
 * `current` is a device whose context is current in the launching thread (-1: none). */
static int contexts, current = -2;
static int kernel_count, stream_count, sync_every, threads = 1, graph_kernels, gpu;
static long long gap_ns;
static char kernels[MAX_KERNELS][32];
static CUfunction functions[MAX_KERNELS];
static CUgraphExec graphs[MAX_KERNELS];
static CUcontext context;
static long launches;
static double began;
static long calls_before;

static void need(CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "%s: %d\n", what, result);
    exit(1);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void rest(long long ns)
{
    struct timespec t = {ns / 1000000000, ns % 1000000000};
    nanosleep(&t, NULL);
}

/* Overwrite eight bytes of a file once, at the start of the worker. A value with a sign is relative to the current
 * time. */
static void poke(void)
{
    struct timespec t;
    long long value = strtoll(poke_value, NULL, 0);
    int fd = open(poke_file, O_RDWR);
    clock_gettime(CLOCK_MONOTONIC, &t);
    if (*poke_value == '+' || *poke_value == '-')
        value += t.tv_sec * 1000000000LL + t.tv_nsec;
    if (fd < 0 || pwrite(fd, &value, sizeof value, poke_offset) != sizeof value)
        perror(poke_file), exit(1);
    close(fd);
}

/* For the whole run, write leases that another tenant must wait for. Each belongs to process 4096 and ends in 0.9 s. */
static void poke_leases(void)
{
    int fd = open(poke_file, O_RDWR);
    for (double end = now() + seconds; now() < end; rest(100000000)) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        unsigned long long lease = 4096ULL << 48 | (t.tv_sec * 1000000ULL + t.tv_nsec / 1000 + 900000);
        if (fd < 0 || pwrite(fd, &lease, sizeof lease, poke_offset) != sizeof lease)
            perror(poke_file), exit(1);
    }
    close(fd);
    seconds = 0;
}

static void report(void)
{
    printf("%.6f %lld %ld %ld %ld %ld\n", now() - began, (long long)stub_busy_ns(gpu),
           __atomic_load_n(&launches, __ATOMIC_RELAXED), stub_calls() - calls_before, stub_parted(), stub_waits());
    fflush(stdout);
}

static CUgraphExec make_graph(CUfunction function, CUstream stream)
{
    CUgraph graph;
    CUgraphExec exec;
    need(cuStreamBeginCapture_v2(stream, 0), "cuStreamBeginCapture");
    for (int i = 0; i < graph_kernels; i++)
        need(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL), "captured launch");
    need(cuStreamEndCapture(stream, &graph), "cuStreamEndCapture");
    need(cuGraphInstantiateWithFlags(&exec, graph, 0), "cuGraphInstantiateWithFlags");
    return exec;
}

static void launch(int i, CUstream stream)
{
    if (time_launches) { /* the most common form, without anything else in the loop */
        cuLaunchKernel(functions[i], 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
        return;
    }
    CUlaunchConfig config = {1, 1, 1, 1, 1, 1, 0, stream, NULL, 0};
    CUfunction f = functions[i];
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (!strcmp(form, "kernel"))
        result = cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
    else if (!strcmp(form, "kernel_ptsz"))
        result = cuLaunchKernel_ptsz(f, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
    else if (!strcmp(form, "ex"))
        result = cuLaunchKernelEx(&config, f, NULL, NULL);
    else if (!strcmp(form, "dependent")) {
        CUlaunchAttribute attribute = {.id = 6, .value.number = 1};
        config.attrs = &attribute;
        config.numAttrs = 1;
        result = cuLaunchKernelEx(&config, f, NULL, NULL);
    }
    else if (!strcmp(form, "ex_ptsz"))
        result = cuLaunchKernelEx_ptsz(&config, f, NULL, NULL);
    else if (!strcmp(form, "cooperative"))
        result = cuLaunchCooperativeKernel(f, 1, 1, 1, 1, 1, 1, 0, stream, NULL);
    else if (!strcmp(form, "cooperative_ptsz"))
        result = cuLaunchCooperativeKernel_ptsz(f, 1, 1, 1, 1, 1, 1, 0, stream, NULL);
    else if (!strcmp(form, "old"))
        result = cuLaunch(f);
    else if (!strcmp(form, "grid"))
        result = cuLaunchGrid(f, 1, 1);
    else if (!strcmp(form, "grid_async"))
        result = cuLaunchGridAsync(f, 1, 1, stream);
    else if (!strcmp(form, "devices"))
        result = cuLaunchCooperativeKernelMultiDevice(&(CUDA_LAUNCH_PARAMS){f, 1, 1, 1, 1, 1, 1, 0, stream, NULL}, 1, 0);
    else if (!strcmp(form, "graph"))
        result = cuGraphLaunch(graphs[i], stream);
    else if (!strcmp(form, "graph_ptsz"))
        result = cuGraphLaunch_ptsz(graphs[i], stream);
    need(result, form);
    __atomic_add_fetch(&launches, 1, __ATOMIC_RELAXED);
}

/* Keep a stream's capture in global mode open during launches in another stream. The capture must
 * succeed. */
static void capture_meanwhile(CUstream other)
{
    CUstream stream;
    CUgraph graph;
    need(cuStreamCreate(&stream, 1), "cuStreamCreate");
    need(cuStreamBeginCapture_v2(stream, 0), "cuStreamBeginCapture");
    for (int i = 0; i < 50; i++) {
        need(cuLaunchKernel(functions[0], 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL), "captured launch");
        launch(0, other);
    }
    need(cuStreamEndCapture(stream, &graph), "cuStreamEndCapture after launches elsewhere");
}

/* The work of the old context is finished. The context's streams, modules and events are destroyed
 * with it. */
static void renew_context(void)
{
    static CUcontext own;
    need(cuCtxSynchronize(), "cuCtxSynchronize");
    if (own)
        need(cuCtxDestroy_v2(own), "cuCtxDestroy");
    else
        need(cuDevicePrimaryCtxReset_v2(gpu), "cuDevicePrimaryCtxReset");
    need(cuCtxCreate_v2(&own, 0, gpu), "cuCtxCreate");
}

static void *work(void *first)
{
    CUstream streams[MAX_STREAMS] = {NULL};
    double next_report = report_every;
    rest(1000); /* simulated time starts when all expected threads have arrived, so they start together */
    if (first) {
        began = now();
        calls_before = stub_calls();
    }
    if (start > 0)
        rest((long long)(start * 1e9));
    if (first && poke_file && strcmp(poke_value, "leases") == 0)
        poke_leases();
    else if (first && poke_file)
        poke();
    if (first && run_file) {
        unsetenv("LD_PRELOAD"); /* a sanitizer's library would end a shell that was not built with it */
        if (system(run_file) != 0) /* simulated time stops while the command runs */
            exit(1);
    }
    double end = now() + seconds;
    need(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    if (contexts)
        stream_count = contexts < MAX_STREAMS ? contexts : MAX_STREAMS;
    for (int i = 0; i < stream_count; i++) {
        CUcontext own;
        if (contexts)
            need(cuCtxCreate_v2(&own, 0, gpu), "cuCtxCreate");
        need(cuStreamCreate(&streams[i], 1), "cuStreamCreate");
    }
    if (current > -2) {
        CUcontext other = NULL;
        if (current >= 0)
            need(cuDevicePrimaryCtxRetain(&other, current), "cuDevicePrimaryCtxRetain");
        need(cuCtxSetCurrent(other), "cuCtxSetCurrent");
    }
    for (long i = 0; steps ? i < steps * kernel_count : now() < end; i++) {
        long stream = contexts && i >= contexts ? stream_count - 1 : stream_count ? i % stream_count : 0;
        launch((int)(i % kernel_count), streams[stream]);
        if (die_after && i + 1 >= die_after)
            kill(getpid(), SIGKILL);
        if (sync_every && i % sync_every == sync_every - 1)
            need(cuCtxSynchronize(), "cuCtxSynchronize");
        if (fresh_context && i % fresh_context == fresh_context - 1)
            renew_context();
        if (gap_ns)
            rest(gap_ns);
        if (!first)
            continue;
        if (report_every > 0 && now() - began >= next_report) {
            report();
            next_report += report_every;
        }
        if (rename_at > 0 && now() - began >= rename_at) {
            if (rename(rename_from, rename_to) != 0)
                perror("rename"), exit(1);
            rename_at = 0;
        }
        if (capture_at > 0 && now() - began >= capture_at) {
            capture_meanwhile(streams[0]);
            capture_at = 0;
        }
    }
    if (steps)
        need(cuCtxSynchronize(), "cuCtxSynchronize");
    if (first)
        report();
    return NULL;
}

int main(int count, char **words)
{
    for (int i = 1; i + 1 < count; i += 2) {
        const char *name = words[i], *value = words[i + 1];
        if (!strcmp(name, "--seconds")) seconds = atof(value);
        else if (!strcmp(name, "--start")) start = atof(value);
        else if (!strcmp(name, "--steps")) steps = atol(value); /* number of steps; a step launches each kernel once, whatever time that takes */
        else if (!strcmp(name, "--report")) report_every = atof(value);
        else if (!strcmp(name, "--kernel")) snprintf(kernels[kernel_count++ % MAX_KERNELS], 32, *value > '9' ? "%s" : "busy_%s", value);
        else if (!strcmp(name, "--distinct")) { /* this number of different kernels in place of the one */
            char like[32];
            memcpy(like, kernels[0], sizeof like);
            for (kernel_count = 0; kernel_count < atoi(value) && kernel_count < MAX_KERNELS; kernel_count++)
                snprintf(kernels[kernel_count], 32, "%.15s_%d", like, kernel_count);
        }
        else if (!strcmp(name, "--streams")) stream_count = atoi(value);
        else if (!strcmp(name, "--sync")) sync_every = atoi(value);
        else if (!strcmp(name, "--threads")) threads = atoi(value);
        else if (!strcmp(name, "--gap")) gap_ns = atoll(value);
        else if (!strcmp(name, "--form")) form = value;
        else if (!strcmp(name, "--graph")) graph_kernels = atoi(value);
        else if (!strcmp(name, "--rename-at")) rename_at = atof(value);
        else if (!strcmp(name, "--rename-from")) rename_from = value;
        else if (!strcmp(name, "--rename-to")) rename_to = value;
        else if (!strcmp(name, "--poke-file")) poke_file = value;
        else if (!strcmp(name, "--poke-offset")) poke_offset = atoll(value);
        else if (!strcmp(name, "--poke-value")) poke_value = value;
        else if (!strcmp(name, "--run")) run_file = value;
        else if (!strcmp(name, "--die-after")) die_after = atol(value);
        else if (!strcmp(name, "--device")) gpu = atoi(value);
        else if (!strcmp(name, "--contexts")) contexts = atoi(value);
        else if (!strcmp(name, "--current")) current = atoi(value);
        else if (!strcmp(name, "--fresh-context")) fresh_context = atol(value);
        else if (!strcmp(name, "--time")) time_launches = atol(value);
        else if (!strcmp(name, "--capture-at")) capture_at = atof(value);
        else return fprintf(stderr, "%s: not known\n", name), 2;
    }
    CUdevice device;
    CUmodule module;
    CUstream stream;
    need(cuInit(0), "cuInit");
    need(cuDeviceGet(&device, gpu), "cuDeviceGet");
    need(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    need(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    need(cuModuleLoadData(&module, ""), "cuModuleLoadData");
    need(cuStreamCreate(&stream, 1), "cuStreamCreate");
    for (int i = 0; i < kernel_count; i++) {
        need(cuModuleGetFunction(&functions[i], module, kernels[i]), "cuModuleGetFunction");
        if (graph_kernels)
            graphs[i] = make_graph(functions[i], stream);
    }
    if (time_launches) {
        double least = 1e9;
        for (int round = 0; round < 20; round++) {
            double before = now();
            for (long i = 0; i < time_launches; i++)
                launch(0, NULL);
            double each = (now() - before) / (double)time_launches * 1e9;
            least = each < least ? each : least;
        }
        printf("%.2f ns, the least of 20 rounds\n", least);
        return 0;
    }
    /* The worker threads take part in simulated time. This thread waits for them in real time. */
    pthread_t workers[MAX_THREADS];
    for (int i = 0; i < threads && i < MAX_THREADS; i++)
        pthread_create(&workers[i], NULL, work, i ? NULL : &threads);
    for (int i = 0; i < threads && i < MAX_THREADS; i++)
        pthread_join(workers[i], NULL);
    return 0;
}
