/* Copyright: (c) openfleet.gpu contributors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Modules and launches. A kernel's name determines its duration, with lengths in nanoseconds:
 *
 *   busy_LENGTH                       takes LENGTH, for example busy_10000
 *   needs_next                        ends when this process has launched another kernel
 *   meet_LENGTH_MEETING_RANKS         belongs to a collective operation: the n-th kernels of RANKS processes make
 *                                     progress once all of them have started
 *   steps_LENGTH_OTHER_N              takes OTHER in every second block of N launches
 *   mixed_LENGTH_OTHER_N              takes OTHER in one of N launches
 */
#include "gpu.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CUfunc_st {
    uint64_t nanoseconds;
    bool loaded;
    int meeting, ranks; /* ranks 0: the kernel meets no others */
    uint64_t other, every, launches; /* every 0: the kernel has one length */
    bool mixed;
    struct CUfunc_st *next;
    char name[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUfunc_st *functions;

/* --- modules, which are all equal --- */

static CUresult load(void **handle)
{
    static char module;
    CUresult ready = stub_ready();
    if (ready || !handle)
        return ready ? ready : CUDA_ERROR_INVALID_VALUE;
    *handle = &module;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleLoad(CUmodule *module, const char *name) { (void)name; return load((void **)module); }
EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image) { (void)image; return load((void **)module); }
EXPORT CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image) { (void)image; return load((void **)module); }
EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int n, void *names, void *values)
{
    (void)image, (void)n, (void)names, (void)values;
    return load((void **)module);
}
EXPORT CUresult cuModuleUnload(CUmodule module) { return module ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE; }
EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *code, void *a, void *b, unsigned int c, void *d, void *e, unsigned int f)
{
    (void)code, (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
    return load((void **)library);
}
EXPORT CUresult cuLibraryUnload(CUlibrary library) { return library ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE; }

EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    if (!function || !name)
        return CUDA_ERROR_INVALID_VALUE;
    if (!module)
        return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&lock);
    struct CUfunc_st *f = functions;
    while (f && strcmp(f->name, name))
        f = f->next;
    if (!f) {
        f = calloc(1, sizeof *f + strlen(name) + 1);
        strcpy(f->name, name);
        f->nanoseconds = !strcmp(name, "needs_next") ? GPU_NEEDS_NEXT : strtoull(name + strcspn(name, "0123456789"), NULL, 10);
        sscanf(name, "meet_%*u_%d_%d", &f->meeting, &f->ranks);
        f->mixed = sscanf(name, "mixed_%*u_%" SCNu64 "_%" SCNu64, &f->other, &f->every) == 2;
        if (!f->mixed)
            sscanf(name, "steps_%*u_%" SCNu64 "_%" SCNu64, &f->other, &f->every);
        if (f->meeting < 0 || f->meeting >= CLOCK_MEETINGS)
            abort();
        f->next = functions;
        functions = f;
    }
    pthread_mutex_unlock(&lock);
    *function = f;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    return cuModuleGetFunction((CUfunction *)kernel, (CUmodule)library, name);
}

EXPORT CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    if (!function || !kernel)
        return CUDA_ERROR_INVALID_VALUE;
    *function = (CUfunction)kernel;
    return CUDA_SUCCESS;
}

uint64_t stub_kernel_nanoseconds(CUfunction function) { return function ? function->nanoseconds : 0; }

/* --- launches --- */

/* Let the calling thread use simulated host time. */
static void spend_host_time(int64_t nanoseconds)
{
    struct world *w = clock_world();
    if (!w || nanoseconds <= 0)
        return;
    clock_lock(w);
    clock_wait(w, w->now + nanoseconds, -1, 0, 0, 0);
    clock_unlock(w);
}

static void before_launch(CUfunction function)
{
    bool loaded = __atomic_exchange_n(&function->loaded, true, __ATOMIC_RELAXED);
    spend_host_time((int64_t)(stub_setting("STUB_LAUNCH_NS", 0) + (loaded ? 0 : stub_setting("STUB_LAZY_NS", 0))));
}

static long parted; /* dependent launches that an event separates from the previous launch */

EXPORT long stub_parted(void) { return __atomic_load_n(&parted, __ATOMIC_RELAXED); }

static bool is_dependent(const CUlaunchConfig *config)
{
    for (unsigned i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id == 6 && config->attrs[i].value.number & 0xffffffff) /* PROGRAMMATIC_STREAM_SERIALIZATION */
            return true;
    return false;
}

static uint64_t length_of(CUfunction f)
{
    if (!f->every)
        return f->nanoseconds;
    uint64_t number = __atomic_fetch_add(&f->launches, 1, __ATOMIC_RELAXED);
    bool other = f->mixed ? number % f->every == f->every - 1 : number / f->every % 2 == 1;
    return other ? f->other : f->nanoseconds;
}

static CUresult launch(CUfunction function, CUstream handle, bool per_thread)
{
    CUresult ready = stub_ready();
    if (ready || !function)
        return ready ? ready : CUDA_ERROR_INVALID_HANDLE;
    struct CUstream_st *stream = gpu_stream(handle, per_thread);
    if (!stream)
        return CUDA_ERROR_INVALID_CONTEXT;
    bool captured;
    CUresult result = gpu_capturing(stream, &captured);
    if (result)
        return result;
    if (captured) {
        stub_graph_add_kernel(stream->graph, function->nanoseconds);
        return CUDA_SUCCESS;
    }
    stream->launched = true;
    stream->parted = false;
    before_launch(function);
    if (function->ranks)
        gpu_submit_meeting(stream, function->nanoseconds, function->meeting, function->ranks);
    else
        gpu_submit_kernel(stream, length_of(function));
    if (stub_setting("CUDA_LAUNCH_BLOCKING", 0))
        gpu_wait_for_stream(stream);
    return CUDA_SUCCESS;
}

static CUresult launch_config(const CUlaunchConfig *config, CUfunction function, bool per_thread)
{
    struct CUstream_st *stream = gpu_stream(config->hStream, per_thread);
    if (stream && is_dependent(config) && stream->launched && stream->parted)
        __atomic_add_fetch(&parted, 1, __ATOMIC_RELAXED);
    return launch(function, config->hStream, per_thread);
}

#define SHAPE unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared
#define UNUSED (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)arguments

EXPORT CUresult cuLaunchKernel(CUfunction f, SHAPE, CUstream stream, void **arguments, void **extra)
{
    UNUSED, (void)extra;
    return launch(f, stream, false);
}

EXPORT CUresult cuLaunchKernel_ptsz(CUfunction f, SHAPE, CUstream stream, void **arguments, void **extra)
{
    UNUSED, (void)extra;
    return launch(f, stream, true);
}

EXPORT CUresult cuLaunchCooperativeKernel(CUfunction f, SHAPE, CUstream stream, void **arguments)
{
    UNUSED;
    return launch(f, stream, false);
}

EXPORT CUresult cuLaunchCooperativeKernel_ptsz(CUfunction f, SHAPE, CUstream stream, void **arguments)
{
    UNUSED;
    return launch(f, stream, true);
}

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **arguments, void **extra)
{
    (void)arguments, (void)extra;
    return config ? launch_config(config, f, false) : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f, void **arguments, void **extra)
{
    (void)arguments, (void)extra;
    return config ? launch_config(config, f, true) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult launch_graph(CUgraphExec graph, CUstream handle, bool per_thread)
{
    CUresult ready = stub_ready();
    if (ready || !graph)
        return ready ? ready : CUDA_ERROR_INVALID_VALUE;
    struct CUstream_st *stream = gpu_stream(handle, per_thread);
    if (!stream)
        return CUDA_ERROR_INVALID_CONTEXT;
    bool captured;
    CUresult result = gpu_capturing(stream, &captured);
    if (result || captured)
        return result ? result : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    result = stub_graph_memory(graph);
    if (!result)
        gpu_submit_kernel(stream, stub_graph_nanoseconds(graph));
    return result;
}

EXPORT CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) { return launch_graph(graph, stream, false); }
EXPORT CUresult cuGraphLaunch_ptsz(CUgraphExec graph, CUstream stream) { return launch_graph(graph, stream, true); }
