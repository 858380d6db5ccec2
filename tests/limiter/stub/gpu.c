/* Copyright: (c) openfleet.gpu contributors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Streams and capture. With simulated time (clock.h), operations wait in the queues of a simulated GPU that all
 * processes of a test share. Without simulated time, operations run at once.
 */
#include "gpu.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUstream_st defaults[STUB_MAX_GPUS][2]; /* legacy, and per thread (one for all threads) */
static struct CUstream_st *streams;
static int global_captures; /* captures of all threads in global mode */
static __thread int own_captures, own_mode; /* captures not in relaxed mode, and the mode set by cuThreadExchangeStreamCaptureMode */
static int tenants[CLOCK_GPUS], tenants_pid;
static long calls;

void stub_count_call(void) { __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED); }

EXPORT long stub_calls(void) { return __atomic_load_n(&calls, __ATOMIC_RELAXED); }

enum { MODE_GLOBAL, MODE_THREAD_LOCAL, MODE_RELAXED };

/* --- streams --- */

struct CUstream_st *gpu_stream(CUstream handle, bool per_thread)
{
    if (handle && handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD)
        return handle;
    int gpu = stub_current_gpu();
    if (gpu < 0)
        return NULL;
    struct CUstream_st *stream = &defaults[gpu][handle ? handle == CU_STREAM_PER_THREAD : per_thread];
    stream->gpu = gpu;
    stream->queue = stream == &defaults[gpu][1];
    return stream;
}

int stub_stream_gpu(CUstream handle)
{
    struct CUstream_st *stream = gpu_stream(handle, false);
    return stream ? stream->gpu : -1;
}

CUgraph stub_stream_graph(CUstream handle)
{
    struct CUstream_st *stream = gpu_stream(handle, false);
    return stream ? stream->graph : NULL;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *);

EXPORT CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
{
    (void)priority;
    CUresult ready = stub_ready();
    if (ready || !stream || flags > 1)
        return ready ? ready : CUDA_ERROR_INVALID_VALUE;
    int gpu = stub_current_gpu();
    if (gpu < 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    struct CUstream_st *new = calloc(1, sizeof *new);
    new->gpu = gpu;
    cuCtxGetCurrent(&new->context);
    pthread_mutex_lock(&lock);
    /* Use the queue with the fewest streams. Queues 0 and 1 belong to the default streams. */
    int users[CLOCK_STREAMS] = {0};
    for (struct CUstream_st *s = streams; s; s = s->next)
        users[s->queue]++;
    new->queue = 2;
    for (int i = 3; i < CLOCK_STREAMS; i++)
        if (users[i] < users[new->queue])
            new->queue = i;
    new->next = streams;
    streams = new;
    pthread_mutex_unlock(&lock);
    *stream = new;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
    return cuStreamCreateWithPriority(stream, flags, 0);
}

EXPORT CUresult cuStreamDestroy_v2(CUstream stream)
{
    if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
        return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&lock);
    for (struct CUstream_st **s = &streams; *s; s = &(*s)->next)
        if (*s == stream) {
            *s = stream->next;
            free(stream);
            break;
        }
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamDestroy(CUstream stream) { return cuStreamDestroy_v2(stream); }

EXPORT CUresult cuStreamGetCtx(CUstream handle, CUcontext *context)
{
    stub_count_call();
    struct CUstream_st *stream = gpu_stream(handle, false);
    if (!context || !stream)
        return context ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_VALUE;
    if (stream->context)
        *context = stream->context;
    else
        cuCtxGetCurrent(context);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCtx_ptsz(CUstream handle, CUcontext *context) { return cuStreamGetCtx(handle, context); }

/* --- the queues --- */

int gpu_tenant(struct world *w, int gpu)
{
    if (gpu >= CLOCK_GPUS)
        abort();
    if (tenants_pid != getpid()) {
        memset(tenants, 0, sizeof tenants);
        tenants_pid = getpid();
    }
    for (int i = 0; i < CLOCK_PROCESSES && !tenants[gpu]; i++)
        if (!w->gpus[gpu].tenants[i].pid) {
            w->gpus[gpu].tenants[i].pid = getpid();
            tenants[gpu] = i + 1;
        }
    if (!tenants[gpu])
        abort();
    return tenants[gpu] - 1;
}

void gpu_submit(struct world *w, struct CUstream_st *stream, struct op op)
{
    clock_join(w);
    int tenant = gpu_tenant(w, stream->gpu);
    struct queue *queue = &w->gpus[stream->gpu].tenants[tenant].queues[stream->queue];
    while (queue->put - queue->done >= CLOCK_OPS)
        clock_wait(w, INT64_MAX, stream->gpu, tenant, stream->queue, queue->put - CLOCK_OPS + 1);
    queue->ops[queue->put % CLOCK_OPS] = op;
    queue->put++;
    gpu_settle(w, &w->gpus[stream->gpu]);
}

void gpu_submit_kernel(struct CUstream_st *stream, uint64_t nanoseconds)
{
    struct world *w = clock_world();
    if (!w || !nanoseconds)
        return;
    clock_lock(w);
    uint64_t launches = ++w->gpus[stream->gpu].tenants[gpu_tenant(w, stream->gpu)].launches;
    if (nanoseconds == GPU_NEEDS_NEXT)
        gpu_submit(w, stream, (struct op){.kind = OP_SPIN, .serial = launches + 1});
    else
        gpu_submit(w, stream, (struct op){.kind = OP_KERNEL, .left = (int64_t)nanoseconds, .meeting = -1});
    clock_unlock(w);
}

void gpu_submit_meeting(struct CUstream_st *stream, uint64_t nanoseconds, int meeting, int ranks)
{
    struct world *w = clock_world();
    if (!w)
        return;
    clock_lock(w);
    struct tenant *tenant = &w->gpus[stream->gpu].tenants[gpu_tenant(w, stream->gpu)];
    tenant->launches++;
    uint64_t starts = ++tenant->meetings[meeting] * (uint64_t)ranks;
    gpu_submit(w, stream, (struct op){.kind = OP_KERNEL, .left = (int64_t)nanoseconds, .meeting = meeting, .starts = starts});
    clock_unlock(w);
}

static void wait_for_queue(struct world *w, int gpu, int tenant, int i)
{
    struct queue *queue = &w->gpus[gpu].tenants[tenant].queues[i];
    uint64_t put = queue->put;
    if (queue->done < put)
        clock_wait(w, INT64_MAX, gpu, tenant, i, put);
}

void gpu_wait_for_stream(struct CUstream_st *stream)
{
    struct world *w = clock_world();
    if (!w)
        return;
    clock_lock(w);
    wait_for_queue(w, stream->gpu, gpu_tenant(w, stream->gpu), stream->queue);
    clock_unlock(w);
}

void stub_gpu_wait(int gpu)
{
    struct world *w = clock_world();
    if (w && gpu >= 0) {
        clock_lock(w);
        int tenant = gpu_tenant(w, gpu);
        for (int i = 0; i < CLOCK_STREAMS; i++)
            wait_for_queue(w, gpu, tenant, i);
        clock_unlock(w);
    }
    stub_pools_settle(gpu);
}

/* Return the GPU time that this process has used so far. */
EXPORT int64_t stub_busy_ns(int gpu)
{
    struct world *w = clock_world();
    if (!w)
        return 0;
    clock_lock(w);
    int64_t busy = w->gpus[gpu].tenants[gpu_tenant(w, gpu)].busy;
    clock_unlock(w);
    return busy;
}

/* --- capture --- */

CUresult gpu_unsafe(void)
{
    bool prohibited = own_mode != MODE_RELAXED && (own_captures || (own_mode == MODE_GLOBAL && global_captures));
    return prohibited ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

EXPORT CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
    if (!mode || *mode < 0 || *mode > MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    stub_count_call();
    int before = own_mode;
    own_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

CUresult gpu_capturing(struct CUstream_st *stream, bool *captured)
{
    *captured = stream->graph != NULL;
    if (__atomic_load_n(&global_captures, __ATOMIC_RELAXED) && stream->queue == 0)
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    return CUDA_SUCCESS;
}

static CUresult begin(struct CUstream_st *stream, int mode)
{
    if (!stream)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (stream->graph || stream->queue == 0 || mode < 0 || mode > MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    stream->graph = stub_graph_new();
    stream->mode = mode;
    if (mode == MODE_GLOBAL)
        __atomic_add_fetch(&global_captures, 1, __ATOMIC_RELAXED);
    own_captures += mode != MODE_RELAXED;
    return CUDA_SUCCESS;
}

static CUresult end(struct CUstream_st *stream, CUgraph *graph)
{
    if (!stream || !graph || !stream->graph)
        return CUDA_ERROR_INVALID_VALUE;
    *graph = stream->graph;
    stream->graph = NULL;
    if (stream->mode == MODE_GLOBAL)
        __atomic_sub_fetch(&global_captures, 1, __ATOMIC_RELAXED);
    own_captures -= stream->mode != MODE_RELAXED;
    return CUDA_SUCCESS;
}

static CUresult is_capturing(struct CUstream_st *stream, int *status)
{
    stub_count_call();
    if (!stream || !status)
        return stream ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT;
    bool captured;
    CUresult result = gpu_capturing(stream, &captured);
    if (!result)
        *status = captured;
    return result;
}

EXPORT CUresult cuStreamBeginCapture(CUstream s) { return begin(gpu_stream(s, false), MODE_GLOBAL); }
EXPORT CUresult cuStreamBeginCapture_ptsz(CUstream s) { return begin(gpu_stream(s, true), MODE_GLOBAL); }
EXPORT CUresult cuStreamBeginCapture_v2(CUstream s, int mode) { return begin(gpu_stream(s, false), mode); }
EXPORT CUresult cuStreamBeginCapture_v2_ptsz(CUstream s, int mode) { return begin(gpu_stream(s, true), mode); }
EXPORT CUresult cuStreamEndCapture(CUstream s, CUgraph *graph) { return end(gpu_stream(s, false), graph); }
EXPORT CUresult cuStreamEndCapture_ptsz(CUstream s, CUgraph *graph) { return end(gpu_stream(s, true), graph); }
EXPORT CUresult cuStreamIsCapturing(CUstream s, int *status) { return is_capturing(gpu_stream(s, false), status); }
EXPORT CUresult cuStreamIsCapturing_ptsz(CUstream s, int *status) { return is_capturing(gpu_stream(s, true), status); }

static CUresult synchronize(struct CUstream_st *stream)
{
    CUresult ready = stub_ready();
    if (ready || !stream)
        return ready ? ready : CUDA_ERROR_INVALID_CONTEXT;
    if (stream->graph || gpu_unsafe())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    gpu_wait_for_stream(stream);
    stub_pools_settle(stream->gpu);
    return CUDA_SUCCESS;
}

static CUresult query(struct CUstream_st *stream)
{
    if (!stream)
        return CUDA_ERROR_INVALID_CONTEXT;
    struct world *w = clock_world();
    if (!w)
        return CUDA_SUCCESS;
    clock_lock(w);
    struct queue *queue = &w->gpus[stream->gpu].tenants[gpu_tenant(w, stream->gpu)].queues[stream->queue];
    bool done = queue->done == queue->put;
    clock_unlock(w);
    return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuStreamSynchronize(CUstream s) { return synchronize(gpu_stream(s, false)); }
EXPORT CUresult cuStreamSynchronize_ptsz(CUstream s) { return synchronize(gpu_stream(s, true)); }
EXPORT CUresult cuStreamQuery(CUstream s) { return query(gpu_stream(s, false)); }
EXPORT CUresult cuStreamQuery_ptsz(CUstream s) { return query(gpu_stream(s, true)); }
