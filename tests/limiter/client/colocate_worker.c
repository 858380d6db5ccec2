/* Copyright: (c) openfleet.gpu contributors
 * SPDX-License-Identifier: Apache-2.0
 *
 * An online or an offline program on the stub GPU. All times are nanoseconds of simulated time since its start.
 *
 * usage: colocate_worker online KERNEL_NS KERNELS LOAD_PERCENT SECONDS SEED
 *        colocate_worker offline KERNEL_NS SECONDS [AT FROM TO]
 *
 * The online program serves requests. A request launches KERNELS kernels and waits for them. Requests arrive at random
 * times (a Poisson process), and a request that arrives during another one waits for it. For each request, the program
 * prints `request ARRIVAL BEGIN END`. The offline program launches kernels without a pause, and prints `launch TIME` for
 * each, when the launch returns. At AT seconds, it renames the file FROM to TO, and prints `renamed NS` with its GPU time
 * until then. Both end with `busy NS`, their GPU time.
 */
#define _GNU_SOURCE
#include "../stub/cuda.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

CUresult cuInit(unsigned);
CUresult cuDeviceGet(CUdevice *, int);
CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuCtxSynchronize(void);
CUresult cuStreamCreate(CUstream *, unsigned);
CUresult cuModuleLoadData(CUmodule *, const void *);
CUresult cuModuleGetFunction(CUfunction *, CUmodule, const char *);
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
int64_t stub_busy_ns(int gpu);

static CUcontext context;
static CUfunction function;
static char **words;
static int word_count;
static int64_t began;

static void need(CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS) return;
    fprintf(stderr, "%s: %d\n", what, result);
    exit(1);
}

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec - began;
}

static void rest(int64_t ns)
{
    struct timespec t = {ns / 1000000000, ns % 1000000000};
    nanosleep(&t, NULL);
}

static void launch(CUstream stream) { need(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL), "launch"); }

static void online(CUstream stream)
{
    int64_t kernel = atoll(words[2]), kernels = atoll(words[3]);
    double mean = (double)(kernel * kernels) * 100 / atof(words[4]), arrival = 0;
    int64_t end = (int64_t)(atof(words[5]) * 1e9);
    srand48(atol(words[6]));
    for (arrival = -mean * log(1 - drand48()); arrival < (double)end; arrival -= mean * log(1 - drand48())) {
        if (now() < (int64_t)arrival) rest((int64_t)arrival - now());
        int64_t begin = now();
        for (int64_t i = 0; i < kernels; i++) launch(stream);
        need(cuCtxSynchronize(), "cuCtxSynchronize");
        printf("request %lld %lld %lld\n", (long long)arrival, (long long)begin, (long long)now());
    }
}

static void offline(CUstream stream)
{
    int64_t end = (int64_t)(atof(words[3]) * 1e9);
    int64_t rename_at = word_count > 6 ? (int64_t)(atof(words[4]) * 1e9) : INT64_MAX;
    while (now() < end) {
        if (now() >= rename_at) {
            rename_at = INT64_MAX;
            if (rename(words[5], words[6])) exit(1);
            printf("renamed %lld\n", (long long)stub_busy_ns(0));
        }
        launch(stream);
        printf("launch %lld\n", (long long)now());
    }
}

static void *work(void *unused)
{
    (void)unused;
    CUstream stream;
    rest(1000); /* simulated time starts when all expected threads have arrived */
    began = 0;
    began = now();
    need(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    need(cuStreamCreate(&stream, 1), "cuStreamCreate");
    if (strcmp(words[1], "online") == 0) online(stream);
    else offline(stream);
    printf("busy %lld\n", (long long)stub_busy_ns(0));
    return NULL;
}

int main(int count, char **arguments)
{
    if (count < 4) return 2;
    words = arguments;
    word_count = count;
    char name[32];
    CUdevice device;
    CUmodule module;
    need(cuInit(0), "cuInit");
    need(cuDeviceGet(&device, 0), "cuDeviceGet");
    need(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    need(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    need(cuModuleLoadData(&module, ""), "cuModuleLoadData");
    snprintf(name, sizeof name, "busy_%s", words[2]);
    need(cuModuleGetFunction(&function, module, name), "cuModuleGetFunction");
    pthread_t worker;
    pthread_create(&worker, NULL, work, NULL);
    pthread_join(worker, NULL);
    return 0;
}
