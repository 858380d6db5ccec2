/* Copyright: (c) openfleet.gpu contributors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Events, with the times at which the simulated GPU reached them.
 */
#include "gpu.h"

#include <stdlib.h>

struct CUevent_st {
    int gpu, index; /* index in the shared table, -1 before the first recording */
    int made_on;
    bool timing, recorded, captured;
};

static long records;
static unsigned char taken[CLOCK_GPUS][CLOCK_EVENTS];

EXPORT CUresult cuEventCreate(CUevent *event, unsigned int flags)
{
    stub_count_call();
    CUresult ready = stub_ready();
    if (ready || !event)
        return ready ? ready : CUDA_ERROR_INVALID_VALUE;
    struct CUevent_st *new = calloc(1, sizeof *new);
    *new = (struct CUevent_st){.gpu = stub_current_gpu(), .made_on = stub_current_gpu(), .index = -1, .timing = !(flags & 2)};
    *event = new;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventDestroy_v2(CUevent event)
{
    stub_count_call();
    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    if (event->index >= 0)
        taken[event->gpu][event->index] = 0;
    free(event);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventDestroy(CUevent event) { return cuEventDestroy_v2(event); }

static void record_in_queue(struct world *w, CUevent event, struct CUstream_st *stream)
{
    struct tenant *tenant = &w->gpus[stream->gpu].tenants[gpu_tenant(w, stream->gpu)];
    for (int i = 0; event->index < 0; i++) {
        if (i == CLOCK_EVENTS)
            abort();
        if (taken[stream->gpu][i])
            continue;
        taken[stream->gpu][i] = 1;
        event->index = i;
        event->gpu = stream->gpu;
    }
    uint64_t serial = ++tenant->events[event->index].recorded;
    gpu_submit(w, stream, (struct op){.kind = OP_RECORD, .event = event->index, .serial = serial});
}

static CUresult record(CUevent event, struct CUstream_st *stream)
{
    stub_count_call();
    if (!event || !stream)
        return event ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_HANDLE;
    bool captured;
    CUresult result = gpu_capturing(stream, &captured);
    if (result)
        return result;
    if (event->made_on != stream->gpu)
        return CUDA_ERROR_INVALID_HANDLE; /* the event and the stream belong to different contexts */
    long every = (long)stub_setting("STUB_RECORDS_FAIL", 0);
    if (every && __atomic_add_fetch(&records, 1, __ATOMIC_RELAXED) % every == 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    event->captured = captured;
    event->recorded = true;
    stream->parted = true;
    struct world *w = clock_world();
    if (w && !captured) {
        clock_lock(w);
        record_in_queue(w, event, stream);
        clock_unlock(w);
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventRecord(CUevent e, CUstream s) { return record(e, gpu_stream(s, false)); }
EXPORT CUresult cuEventRecord_ptsz(CUevent e, CUstream s) { return record(e, gpu_stream(s, true)); }

/* Return whether the GPU has reached the event. The world's lock must be held. */
static bool event_done(struct world *w, CUevent event)
{
    if (event->index < 0)
        return true;
    struct event *e = &w->gpus[event->gpu].tenants[gpu_tenant(w, event->gpu)].events[event->index];
    return e->done == e->recorded;
}

EXPORT CUresult cuEventQuery(CUevent event)
{
    stub_count_call();
    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    if (event->captured || gpu_unsafe())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    struct world *w = clock_world();
    if (!w)
        return CUDA_SUCCESS;
    clock_lock(w);
    bool done = event_done(w, event);
    clock_unlock(w);
    return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuEventSynchronize(CUevent event)
{
    stub_count_call();
    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    if (event->captured || gpu_unsafe())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    struct world *w = clock_world();
    if (w) {
        clock_lock(w);
        /* Waiting is rare in tests, so check the event again at each change of the GPU's queues. */
        while (!event_done(w, event))
            clock_wait(w, gpu_next(w, &w->gpus[event->gpu]), -1, 0, 0, 0);
        clock_unlock(w);
    }
    stub_pools_settle(event->gpu);
    return CUDA_SUCCESS;
}

static CUresult wait_event(struct CUstream_st *stream, CUevent event)
{
    if (!event || !stream)
        return event ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_HANDLE;
    struct world *w = clock_world();
    if (!w || event->index < 0 || stream->graph)
        return CUDA_SUCCESS;
    clock_lock(w);
    uint64_t serial = w->gpus[event->gpu].tenants[gpu_tenant(w, event->gpu)].events[event->index].recorded;
    gpu_submit(w, stream, (struct op){.kind = OP_WAIT, .event = event->index, .serial = serial});
    clock_unlock(w);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamWaitEvent(CUstream s, CUevent e, unsigned int flags) { (void)flags; return wait_event(gpu_stream(s, false), e); }
EXPORT CUresult cuStreamWaitEvent_ptsz(CUstream s, CUevent e, unsigned int flags) { (void)flags; return wait_event(gpu_stream(s, true), e); }

/* The driver's timestamps have a resolution of about half a microsecond. */
static int64_t stamp(int64_t time) { return time / 500 * 500; }

EXPORT CUresult cuEventElapsedTime(float *milliseconds, CUevent from, CUevent to)
{
    stub_count_call();
    if (!milliseconds || !from || !to)
        return milliseconds ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    if (!from->recorded || !to->recorded || !from->timing || !to->timing)
        return CUDA_ERROR_INVALID_HANDLE;
    *milliseconds = 0;
    struct world *w = clock_world();
    if (!w)
        return CUDA_SUCCESS;
    clock_lock(w);
    CUresult result = event_done(w, from) && event_done(w, to) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    if (!result) {
        struct event *events = w->gpus[from->gpu].tenants[gpu_tenant(w, from->gpu)].events;
        *milliseconds = (float)((double)(stamp(events[to->index].time) - stamp(events[from->index].time)) / 1e6);
    }
    clock_unlock(w);
    return result;
}

EXPORT CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent from, CUevent to) { return cuEventElapsedTime(milliseconds, from, to); }
