/* Copyright: (c) openfleet.gpu contributors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Simulated time and the queues of simulated GPUs. They are in a file (STUB_CLOCK) that all processes of a test share.
 *
 * The clock stops while any participating thread runs. When all of them sleep or wait for a GPU, the clock advances to
 * the next time at which one of them can continue. Results therefore do not depend on the speed or the load of the
 * machine. A thread participates from its first sleep, launch or wait until it ends.
 *
 *   STUB_CLOCK      the file (a few MB, sparse); without it, kernels take no time, and clocks and sleeps are real
 *   STUB_PARTIES    the clock starts when this number of threads participate (1)
 *   STUB_LATE_NS    additional duration of every sleep and futex wait, as on a real machine (0)
 *   STUB_SLICE_NS   a process's time slice on a GPU (2 ms)
 */
#ifndef OPENFLEET_STUB_CLOCK_H
#define OPENFLEET_STUB_CLOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    CLOCK_GPUS = 4,
    CLOCK_PROCESSES = 24,
    CLOCK_STREAMS = 16,
    CLOCK_OPS = 1024,
    CLOCK_EVENTS = 2048,
    CLOCK_PARTIES = 64,
    CLOCK_MEETINGS = 16,
};

enum op_kind { OP_KERNEL, OP_RECORD, OP_WAIT, OP_SPIN };
struct op {
    enum op_kind kind;
    int event;        /* OP_RECORD, OP_WAIT: index of the event */
    int64_t left;     /* OP_KERNEL: remaining nanoseconds */
    uint64_t serial;  /* OP_RECORD, OP_WAIT: number of the event's recording; OP_SPIN: number of launches to wait for */
    bool started;     /* OP_KERNEL: the GPU has started the kernel */
    int meeting;      /* OP_KERNEL: the meeting that the kernel belongs to (below 0: none) */
    uint64_t starts;  /* OP_KERNEL: number of the meeting's kernels that must have started before this one makes progress */
};
struct queue {
    uint64_t put, done; /* numbers of operations appended and finished; pending ones are in ops[n % CLOCK_OPS] */
    struct op ops[CLOCK_OPS];
};
struct event {
    uint64_t recorded, done; /* serial numbers of recordings */
    int64_t time;            /* time of the last finished recording */
};
/* A process on a GPU. It has its own streams, and the GPU runs one process at a time. */
struct tenant {
    int pid; /* 0: unused */
    int stream; /* the stream whose kernel runs */
    int64_t busy;
    uint64_t launches; /* launches appended so far */
    uint64_t meetings[CLOCK_MEETINGS]; /* launched kernels that meet others, by meeting */
    struct queue queues[CLOCK_STREAMS];
    struct event events[CLOCK_EVENTS];
};
struct gpu {
    int current;
    int64_t slice_end;
    struct tenant tenants[CLOCK_PROCESSES];
};
/* A participating thread. */
struct party {
    int pid, tid; /* 0: unused */
    bool waiting;
    int64_t until;                        /* continues at this time, */
    int gpu, tenant, stream;              /* or, if gpu >= 0, when this stream has finished `done` operations */
    uint64_t done;
    uint32_t wake;   /* futex */
    int futex;       /* the word that the thread waits for, as its position in the page + 1; 0: none */
    bool woken;      /* woken from the futex */
    uint64_t waits;  /* number of waits that the thread has started */
    uint64_t began;  /* number of its last wait, counted over all threads */
};
struct world {
    pthread_mutex_t lock;
    bool made;
    int seen, needed; /* participating threads so far, and required ones */
    int64_t now;
    int64_t slice, late;
    uint64_t waits;                  /* waits started by all threads */
    uint64_t starts[CLOCK_MEETINGS]; /* kernels started, by meeting */
    struct party parties[CLOCK_PARTIES];
    struct gpu gpus[CLOCK_GPUS];
};

/* Return the shared world, or NULL without STUB_CLOCK. */
struct world *clock_world(void);
void clock_lock(struct world *w);
void clock_unlock(struct world *w);
/* Let the calling thread participate. The lock must be held. */
struct party *clock_join(struct world *w);
/* Wait until a time, or, if gpu >= 0, until a stream has finished `done` operations. The lock must be held. */
void clock_wait(struct world *w, int64_t until, int gpu, int tenant, int stream, uint64_t done);

/* --- gpu_queue.c --- */

/* Start the next kernel. */
void gpu_start(struct world *w, struct gpu *g);
/* Let the GPU work from now until `time`. */
void gpu_run(struct world *w, struct gpu *g, int64_t time);
/* Return the time of the GPU's next change, or INT64_MAX if it is idle. */
int64_t gpu_next(struct world *w, struct gpu *g);
/* Process all operations that take no time. */
void gpu_settle(struct world *w, struct gpu *g);
/* Remove an ended process. */
void gpu_forget(struct world *w, int pid);

#endif
