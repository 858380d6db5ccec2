/* Copyright: (c) openfleet.gpu contributors
 * SPDX-License-Identifier: Apache-2.0
 *
 * How a simulated GPU runs its queues. Processes take turns in time slices. Within a process, one kernel runs at a
 * time, and the streams take turns, each in its own order. A kernel that meets others, like that of a collective
 * operation, occupies its GPU or its time slices without progress until all of them have started.
 */
#include "clock.h"

#include <string.h>

static struct op *head(struct queue *q) { return q->done < q->put ? &q->ops[q->done % CLOCK_OPS] : NULL; }

static bool has_kernel(struct tenant *t) {
    if (!t->pid) return false;
    for (int i = 0; i < CLOCK_STREAMS; i++) {
        struct op *op = head(&t->queues[i]);
        if (op && op->kind == OP_KERNEL) return true;
    }
    return false;
}

static bool settle_queue(struct world *w, struct tenant *t, struct queue *q) {
    bool any = false;
    for (struct op *op; (op = head(q)) && op->kind != OP_KERNEL; any = true) {
        struct event *e = &t->events[op->event];
        if (op->kind == OP_SPIN && t->launches < op->serial) break;
        if (op->kind == OP_WAIT && e->done < op->serial) break;
        if (op->kind == OP_RECORD) {
            e->done = op->serial;
            e->time = w->now;
        }
        q->done++;
    }
    return any;
}

void gpu_settle(struct world *w, struct gpu *g) {
    for (int i = 0; i < CLOCK_PROCESSES; i++) {
        struct tenant *t = &g->tenants[i];
        /* If an event is recorded in one stream, another stream may continue. */
        for (bool again = t->pid != 0; again;) {
            again = false;
            for (int s = 0; s < CLOCK_STREAMS; s++) again = settle_queue(w, t, &t->queues[s]) || again;
        }
    }
}

static bool another_waits(struct gpu *g) {
    for (int i = 0; i < CLOCK_PROCESSES; i++)
        if (i != g->current && has_kernel(&g->tenants[i])) return true;
    return false;
}

/* Return the kernel that runs at this time, or NULL. */
static struct op *running(struct world *w, struct gpu *g, int64_t now) {
    struct tenant *t = &g->tenants[g->current];
    if (!has_kernel(t) || (now >= g->slice_end && another_waits(g))) {
        for (int i = 1; i <= CLOCK_PROCESSES; i++) {
            int next = (g->current + i) % CLOCK_PROCESSES;
            if (!has_kernel(&g->tenants[next])) continue;
            g->current = next;
            g->slice_end = now + w->slice;
            break;
        }
        t = &g->tenants[g->current];
    }
    for (int i = 0; i < CLOCK_STREAMS && t->pid; i++) {
        int stream = (t->stream + i) % CLOCK_STREAMS;
        struct op *op = head(&t->queues[stream]);
        if (!op || op->kind != OP_KERNEL) continue;
        t->stream = stream;
        return op;
    }
    return NULL;
}

static bool makes_progress(struct world *w, struct op *op) {
    return op->meeting < 0 || w->starts[op->meeting] >= op->starts;
}

void gpu_start(struct world *w, struct gpu *g) {
    struct op *op = running(w, g, w->now);
    if (!op || op->started) return;
    op->started = true;
    if (op->meeting >= 0) w->starts[op->meeting]++;
}

int64_t gpu_next(struct world *w, struct gpu *g) {
    struct op *op = running(w, g, w->now);
    if (!op) return INT64_MAX;
    if (w->now >= g->slice_end) g->slice_end = w->now + w->slice;
    int64_t end = makes_progress(w, op) ? w->now + op->left : INT64_MAX;
    return another_waits(g) && g->slice_end < end ? g->slice_end : end;
}

/* The clock calls gpu_next() before each step, so no step passes the end of a kernel or of a slice. */
void gpu_run(struct world *w, struct gpu *g, int64_t time) {
    struct op *op = running(w, g, w->now);
    if (!op || time <= w->now) return;
    struct tenant *t = &g->tenants[g->current];
    if (makes_progress(w, op)) op->left -= time - w->now;
    t->busy += time - w->now;
    if (op->left > 0) return;
    t->queues[t->stream].done++;
    t->stream = (t->stream + 1) % CLOCK_STREAMS;
}

void gpu_forget(struct world *w, int pid) {
    for (int i = 0; i < CLOCK_GPUS; i++)
        for (int j = 0; j < CLOCK_PROCESSES; j++)
            if (w->gpus[i].tenants[j].pid == pid) memset(&w->gpus[i].tenants[j], 0, sizeof(struct tenant));
}
