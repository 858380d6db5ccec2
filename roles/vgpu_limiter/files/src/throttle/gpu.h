/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * What a process keeps of a throttled GPU.
 */
#ifndef THROTTLE_GPU_H
#define THROTTLE_GPU_H

#include "base/clock.h"
#include "formats/quota.h"
#include "throttle/credit.h"
#include "throttle/launches.h"
#include "throttle/lease.h"
#include "throttle/turnstile.h"

/* What the agent has of a GPU, mapped. */
struct seat_pages {
	struct seat *seats[TURNSTILE_SEATS];	/* NULL: none. Only the own one can be written */
	struct turnstile_terms *terms;		/* NULL: the agent has nothing of this GPU */
	struct seat *own;			/* the same as seats[own_seat] */
	int own_seat;
	uint64_t inode;				/* of the own seat's memory */
	uint64_t changes;			/* of the terms, as the seats are */
};

struct throttle_gpu {
	struct turnstile_file *file;	/* NULL: none can be used. Its locks tell who lives, wherever the seats are */
	struct turnstile *mine;		/* of the agent's seats, or else the file's, or else one that this process alone has */
	struct seat_pages pages;	/* the agent's, if any; what `mine` leads to then */
	struct turnstile view;
	char path[512];
	uint64_t device, inode;		/* of the file that is mapped */
	int seat;			/* -1: none, as the quota names none (any more) */
	unsigned process;
	struct terms terms;		/* as the quota says, whatever the turnstile says */
	int64_t own_paid;		/* paid_until, if this process alone had used the GPU */
	int64_t unseen_ns;		/* below 0: the seat's used_ns is so much too high */
	int64_t took_ns;		/* when it took the lease last */
	bool spent;			/* ran out of credit and waits for some */
	bool ending;			/* its turn is over as soon as its work is done */
	bool alone;			/* nobody else wants the GPU, as of looked_ns */
	int64_t looked_ns;		/* at the other seats */
	int64_t progress_ns;		/* when some of its work was last known to be done, or there was none */
	int64_t done_ns;		/* when work was last found done, or begun where there was none */
	int64_t turn_checked_ns;	/* when it was asked last whether the turn is over */
	int64_t lead_ns;		/* of this GPU's credit, so that it is that of the tenant's richest GPU */
	uint64_t peers_held_ns;		/* how long the tenant was held back on its other GPUs, in all */
	bool has_peers;			/* that want their GPUs now */
	bool together;			/* one of them works, and is not late */
	bool behind;			/* one of them has been given more launches */
	bool hurry;			/* one of them is late, maybe for what was not launched here yet */
	int64_t hurry_ns;		/* since when one is late, */
	int64_t idle_hurry_ns;		/* and this process has no work here that it may be late for */
	int64_t late_ns;		/* when one was last late; 0: never */
	int64_t ending_ns;		/* when its turn was first found to be over */
	int64_t not_before;		/* leaves its turn to others until then */
	int64_t liveness_ns;		/* next time to ask */
	struct watch watch;		/* the lease that it waits for, or waited for last */
	bool watches;			/* it is to sleep until that is given back */
	bool woken;			/* it was woken for that */
	int sleepers;
	uint32_t noise;			/* of the next poll */
	struct busy *contexts;		/* in which it has launched */
};

/* The tenant's own seat. */
static inline struct seat *seat_of(const struct throttle_gpu *g) { return g->mine->seats[g->seat]; }

#endif
