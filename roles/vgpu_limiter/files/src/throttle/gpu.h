/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * A process's state for one throttled GPU.
 */
#ifndef THROTTLE_GPU_H
#define THROTTLE_GPU_H

#include "base/clock.h"
#include "formats/quota.h"
#include "throttle/credit.h"
#include "throttle/launches.h"
#include "throttle/lease.h"
#include "throttle/turnstile.h"

/* The agent's memory for a GPU, as mapped by this process. */
struct seat_pages {
	struct seat *seats[TURNSTILE_SEATS];	/* NULL: no seat. Only the own seat is writable */
	struct turnstile_terms *terms;		/* NULL: the agent provides no memory for this GPU */
	struct seat *own;			/* the same as seats[own_seat] */
	int own_seat;
	uint64_t inode;				/* identifies the own seat's memory */
	uint64_t changes;			/* identifies the memory of the terms */
};

struct throttle_gpu {
	struct turnstile_file *file;	/* NULL: unusable. Locks of the file always show which processes are alive */
	struct turnstile *mine;		/* the seats in use: from the agent, else from the file, else private to this process */
	struct seat_pages pages;	/* memory from the agent, if any. `mine` then refers to it */
	struct turnstile view;
	char path[512];
	uint64_t device, inode;		/* identity of the mapped file */
	int seat;			/* -1: the quota contains no seat, or no longer contains one */
	unsigned process;
	struct terms terms;		/* from the quota, regardless of the turnstile's content */
	int64_t own_paid;		/* value that paid_until would have if only this process had used the GPU */
	int64_t unseen_ns;		/* GPU time not yet written to the seat. Below 0: used_ns in the seat is too high */
	int64_t took_ns;		/* start of the last lease */
	bool spent;			/* out of credit and waiting for new credit */
	bool ending;			/* the turn ends when the work in flight is done */
	bool alone;			/* no other tenant wanted the GPU at looked_ns */
	int64_t looked_ns;		/* time at which the other seats were last read */
	int64_t progress_ns;		/* last time at which work was known to have finished, or at which no work was in flight */
	int64_t done_ns;		/* last time at which work finished, or at which work began on an idle GPU */
	int64_t turn_checked_ns;	/* time of the last check whether the turn is over */
	int64_t lead_ns;		/* credit added to this GPU, so that it has as much as the tenant's best GPU */
	uint64_t peers_held_ns;		/* total time for which the tenant was delayed on its other GPUs */
	bool has_peers;			/* whether other GPUs of the tenant are wanted now ("peers") */
	bool together;			/* a peer is working and not late */
	bool behind;			/* a peer got more launches than this GPU */
	bool hurry;			/* a peer is late, perhaps because it waits for work not launched here yet */
	int64_t hurry_ns;		/* since when a peer is late */
	int64_t idle_hurry_ns;		/* since when a peer is late and no work of this process here could be the reason */
	int64_t late_ns;		/* last time at which a peer was late, 0: never */
	int64_t ending_ns;		/* time at which the turn was first found to be over */
	int64_t not_before;		/* this process yields its turn until this time */
	int64_t liveness_ns;		/* time of the next check whether the holder is alive */
	struct watch watch;		/* the lease that this process waits for, or last waited for */
	bool watches;			/* whether to sleep until that lease is released */
	bool woken;			/* whether the release of that lease woke this process */
	bool shared;			/* online: an offline kernel ran when the work in flight began */
	bool gives_way;			/* offline: the last launch waited for an online tenant */
	int64_t level_ns;		/* offline: GPU time left below the waterline */
	int64_t level_at;		/* time of the last update of level_ns, 0: never */
	uint64_t level_used;		/* GPU time of all tenants at level_at */
	int sleepers;
	uint32_t noise;			/* random state for poll times */
	struct busy *contexts;		/* contexts with launches of this process */
};

/* Return the tenant's own seat. */
static inline struct seat *seat_of(const struct throttle_gpu *g) { return g->mine->seats[g->seat]; }

#endif
