/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The format of a turnstile's shared memory. throttle/turnstile.h describes its use.
 *
 * A seat of zeros is valid and empty. Each field is one word that changes atomically. There is no lock. A process may
 * be killed at any instruction, and nothing has to be repaired afterwards.
 */
#ifndef FORMATS_TURNSTILE_H
#define FORMATS_TURNSTILE_H

#include <stdatomic.h>
#include <stdint.h>

#define TURNSTILE_MAGIC UINT64_C(0x5455504756464f00) /* "\0OFVGPUT" */

enum {
	TURNSTILE_VERSION = 1,
	TURNSTILE_SEATS = 64,
	TURNSTILE_PROCESSES = 4096, /* process number 0 is unused */
	TURNSTILE_TENANT = 64,
	/* Process N holds the lock of byte TURNSTILE_LOCKS + N, far beyond the content (vgpu_take_byte). */
	TURNSTILE_LOCKS = 1 << 20,
};

enum policy { POLICY_FIXED = 0, POLICY_CONTENDED = 1, POLICY_BURST = 2, POLICY_COLOCATE = 3 };

/* A tenant's seat. `paid_until` alone decides how much the tenant may use: it is the time at which the tenant's share
 * of elapsed time will have paid for its GPU time. The tenant waits until then if it is in the future. All times are
 * nanoseconds of CLOCK_MONOTONIC (base/clock.h). */
struct seat {
	char tenant[TURNSTILE_TENANT];
	_Atomic uint32_t percent;
	_Atomic uint32_t policy;
	_Atomic int32_t priority; /* 0 is the most urgent. With POLICY_COLOCATE: 0 is online, other values are offline */
	uint32_t unused;
	_Atomic int64_t paid_until;
	_Atomic int64_t active_until;  /* the tenant wants the GPU until this time, at least to use up its credit */
	_Atomic int64_t waiting_until; /* the tenant waits until this time, and could run if it had the turn */
	_Atomic uint64_t used_ns;      /* total GPU time */
	_Atomic uint64_t throttled_ns; /* time for which launches were delayed */
	_Atomic int64_t due;           /* expected end of the tenant's work on this GPU, 0 without work */
	_Atomic int64_t lead;          /* credit added on this GPU, derived from the tenant's other GPUs */
	_Atomic uint64_t launches;     /* number of started launches */
	_Atomic uint64_t lease;        /* process << 48 | end of the lease in microseconds, 0 without a lease */
	_Atomic int64_t lease_since;   /* start of the lease */
	_Atomic uint64_t passes;       /* launches without the lease, concurrent with the lease holder's work */
	/* with POLICY_COLOCATE only */
	_Atomic uint64_t gave_way;     /* offline: how often launches began to wait for online tenants */
	_Atomic uint64_t waits;        /* online: number of launches that waited for an offline kernel */
	_Atomic uint64_t waits_ns;     /* online: estimated total waiting time of these launches */
	_Atomic uint64_t late;         /* online: number of these launches that waited longer than 20 ms */
};

enum { TURNSTILE_BOUNDS = 5 };

/* The agent's page of a tenant. The counters after the seat are for metrics. Files of turnstiles do not have them. */
struct seat_page {
	struct seat seat;
	/* with POLICY_COLOCATE only, online */
	_Atomic uint64_t starts;                   /* launches without other work of the program in flight */
	_Atomic uint64_t longer[TURNSTILE_BOUNDS]; /* how many of them waited longer than 1, 2, 5, 10 and 50 ms */
};

/* Format of the file. Earlier releases store the lease in the bytes that are unused here. They share the seats, and so
 * the credit, with this release. */
struct turnstile_file {
	_Atomic uint64_t magic; /* written last */
	_Atomic uint32_t version, size;
	uint64_t unused[526];
	struct seat seats[TURNSTILE_SEATS];
};

/* Written by the agent and read by tenants: the tenant of each seat, and a counter of changes. */
struct turnstile_terms {
	_Atomic uint64_t changes; /* written last */
	uint64_t reserved[7];
	struct {
		char tenant[TURNSTILE_TENANT];
		_Atomic uint32_t percent; /* 0: the seat is free */
		_Atomic uint32_t policy;
		_Atomic int32_t priority;
		uint32_t unused;
	} seats[TURNSTILE_SEATS];
};

enum { TURNSTILE_PAGE_BYTES = 4096, TURNSTILE_TERMS_BYTES = 8192 }; /* sizes of memory that the agent shares */

#endif
