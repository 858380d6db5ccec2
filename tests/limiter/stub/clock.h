/* Copyright: (c) openfleet.gpu contributors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Virtual time and the queues of simulated GPUs, in a file (STUB_CLOCK) that all processes of a test share.
 *
 * Time stands still while any thread that takes part runs. It moves on when all of them sleep or wait for a GPU, to the
 * next moment at which one of them can go on. So nothing in a test depends on how fast or how loaded the machine is.
 * A thread takes part from its first sleep, launch or wait on, until it ends.
 *
 *   STUB_CLOCK      the file (a few MB, sparse); without it kernels take no time, and clocks and sleeps are the real ones
 *   STUB_PARTIES    time does not begin to move before so many threads take part (1)
 *   STUB_LATE_NS    every sleep lasts so much longer than asked for, as on a real machine, and so do waits on futexes (0)
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
    int64_t left;     /* OP_KERNEL: nanoseconds still to run */
    uint64_t serial;  /* OP_RECORD, OP_WAIT: which recording of the event; OP_SPIN: until so many launches were made */
    bool started;     /* OP_KERNEL: the GPU has begun it */
    int meeting;      /* OP_KERNEL: which meeting it takes part in, below 0: none, */
    uint64_t starts;  /* and how many kernels of the meeting must have started before it makes progress */
};
struct queue {
    uint64_t put, done; /* operations ever put in and done; those between wait in ops[n % CLOCK_OPS] */
    struct op ops[CLOCK_OPS];
};
struct event {
    uint64_t recorded, done; /* serial numbers of recordings */
    int64_t time;            /* of the one done last */
};
/* A process on a GPU: it has streams of its own, and the GPU runs one process at a time. */
struct tenant {
    int pid; /* 0: free */
    int stream; /* whose kernel runs */
    int64_t busy;
    uint64_t launches; /* ever put into its queues */
    uint64_t meetings[CLOCK_MEETINGS]; /* kernels launched that meet others, by meeting */
    struct queue queues[CLOCK_STREAMS];
    struct event events[CLOCK_EVENTS];
};
struct gpu {
    int current;
    int64_t slice_end;
    struct tenant tenants[CLOCK_PROCESSES];
};
/* A thread that takes part. */
struct party {
    int pid, tid; /* 0: free */
    bool waiting;
    int64_t until;                        /* goes on at this time, */
    int gpu, tenant, stream;              /* or (gpu >= 0) when this stream has done so many operations */
    uint64_t done;
    uint32_t wake;   /* futex */
    int futex;       /* which word it waits for, by its place in its page + 1; 0: none */
    bool woken;      /* from that */
    uint64_t waits;  /* that it has begun */
    uint64_t began;  /* the number of the last among those of all */
};
struct world {
    pthread_mutex_t lock;
    bool made;
    int seen, needed; /* parties */
    int64_t now;
    int64_t slice, late;
    uint64_t waits;                  /* begun by all parties */
    uint64_t starts[CLOCK_MEETINGS]; /* kernels started, by meeting */
    struct party parties[CLOCK_PARTIES];
    struct gpu gpus[CLOCK_GPUS];
};

/* The shared world; NULL without STUB_CLOCK. */
struct world *clock_world(void);
void clock_lock(struct world *w);
void clock_unlock(struct world *w);
/* With the lock held: the calling thread takes part. */
struct party *clock_join(struct world *w);
/* With the lock held: waits until `until`, or until a stream has done `done` operations where gpu >= 0. */
void clock_wait(struct world *w, int64_t until, int gpu, int tenant, int stream, uint64_t done);

/* --- gpu_queue.c --- */

/* The kernel whose turn it is begins. */
void gpu_start(struct world *w, struct gpu *g);
/* Lets the GPU work from the present to `time`. */
void gpu_run(struct world *w, struct gpu *g, int64_t time);
/* When it will next have done something; INT64_MAX if it has nothing to do. */
int64_t gpu_next(struct world *w, struct gpu *g);
/* What needs no time is done at once. */
void gpu_settle(struct world *w, struct gpu *g);
/* A process has gone. */
void gpu_forget(struct world *w, int pid);

#endif
