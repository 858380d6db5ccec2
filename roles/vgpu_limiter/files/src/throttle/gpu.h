/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * A process's state of a throttled GPU.
 */
#ifndef THROTTLE_GPU_H
#define THROTTLE_GPU_H

#include "base/clock.h"
#include "formats/quota.h"
#include "throttle/credit.h"
#include "throttle/launches.h"
#include "throttle/lease.h"
#include "throttle/turnstile.h"

/* The agent's mapped memory of a GPU. */
struct seat_pages {
	struct seat *seats[TURNSTILE_SEATS];	/* NULL: none. Only the own seat is writable */
	struct turnstile_terms *terms;		/* NULL without the agent's memory of this GPU */
	struct seat *own;			/* the same as seats[own_seat] */
	int own_seat;
	uint64_t inode;				/* inode of the own seat's memory */
	uint64_t changes;			/* inode of the terms' memory */
};

struct throttle_gpu {
	struct turnstile_file *file;	/* NULL: unusable. Its locks always tell which processes are alive */
	struct turnstile *mine;		/* own seat from the agent, else in the file, else private to this process */
	struct seat_pages pages;	/* the agent's memory, if any. `mine` then points to it */
	struct turnstile view;
	char path[512];
	uint64_t device, inode;		/* identity of the mapped file */
	int seat;			/* -1: the quota has no seat (any more) */
	unsigned process;
	struct terms terms;		/* from the quota, whatever the turnstile contains */
	int64_t own_paid;		/* paid_until if only this process had used the GPU */
	int64_t unseen_ns;		/* below 0: correction of a too high used_ns in the seat */
	int64_t took_ns;		/* start of the last lease */
	bool spent;			/* without credit and waiting for some */
	bool ending;			/* ends its turn when its work is done */
	bool alone;			/* no other tenant wanted the GPU at looked_ns */
	int64_t looked_ns;		/* last read of the other seats */
	int64_t progress_ns;		/* last time at which some of its work was known to be done, or it had none */
	int64_t done_ns;		/* last time at which work finished, or began after none */
	int64_t turn_checked_ns;	/* last check whether the turn is over */
	int64_t lead_ns;		/* bonus to this GPU's credit, so that it equals the tenant's best GPU */
	uint64_t peers_held_ns;		/* total delay of the tenant on its other GPUs */
	bool has_peers;			/* number that want their GPUs now */
	bool together;			/* one is working and not late */
	bool behind;			/* one has more launches */
	bool hurry;			/* one is late, perhaps for work not launched here yet */
	int64_t hurry_ns;		/* since this time one is late, */
	int64_t idle_hurry_ns;		/* and this process has no work here that could delay it */
	int64_t late_ns;		/* last time that one was late, 0: never */
	int64_t ending_ns;		/* first time that its turn was found to be over */
	int64_t not_before;		/* yields its turn until then */
	int64_t liveness_ns;		/* next time to check */
	struct watch watch;		/* the lease that it waits for or last waited for */
	bool watches;			/* sleep until that lease is released */
	bool woken;			/* woken by that release */
	int sleepers;
	uint32_t noise;			/* time of the next poll */
	struct busy *contexts;		/* contexts with launches */
};

/* The tenant's own seat. */
static inline struct seat *seat_of(const struct throttle_gpu *g) { return g->mine->seats[g->seat]; }

#endif
