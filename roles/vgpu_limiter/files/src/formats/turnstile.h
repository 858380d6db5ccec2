/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The shared memory of a turnstile. throttle/turnstile.h describes its use.
 *
 * A seat of zeros is valid and empty. Each field is one word that changes atomically. Without a lock, a process may be
 * killed at any instruction, and no repair is needed.
 */
#ifndef FORMATS_TURNSTILE_H
#define FORMATS_TURNSTILE_H

#include <stdatomic.h>
#include <stdint.h>

#define TURNSTILE_MAGIC UINT64_C(0x5455504756464f00) /* "\0OFVGPUT" */

enum {
	TURNSTILE_VERSION = 1,
	TURNSTILE_SEATS = 64,
	TURNSTILE_PROCESSES = 4096, /* process 0 is unused */
	TURNSTILE_TENANT = 64,
	/* Process N holds the lock of byte TURNSTILE_LOCKS + N, far behind the content (vgpu_take_byte). */
	TURNSTILE_LOCKS = 1 << 20,
};

enum policy { POLICY_FIXED = 0, POLICY_CONTENDED = 1, POLICY_BURST = 2 };

/* A tenant's seat. paid_until alone decides what the tenant may use: the time when its share of elapsed time will
 * have covered its GPU time. If it is in the future, the tenant has to wait until then. All times are nanoseconds of
 * CLOCK_MONOTONIC (base/clock.h). */
struct seat {
	char tenant[TURNSTILE_TENANT];
	_Atomic uint32_t percent;
	_Atomic uint32_t policy;
	_Atomic int32_t priority; /* 0 is the most urgent */
	uint32_t unused;
	_Atomic int64_t paid_until;
	_Atomic int64_t active_until;  /* the tenant wants the GPU until then, at least to use up its credit */
	_Atomic int64_t waiting_until; /* the tenant waits until then and could run if it had the turn */
	_Atomic uint64_t used_ns;      /* total GPU time */
	_Atomic uint64_t throttled_ns; /* time by which launches were delayed */
	_Atomic int64_t due;           /* expected end of its work on this GPU, 0 without work */
	_Atomic int64_t lead;          /* bonus to its credit here, from its other GPUs */
	_Atomic uint64_t launches;     /* number of started launches */
	_Atomic uint64_t lease;        /* process << 48 | end of its lease in microseconds, 0 without a lease */
	_Atomic int64_t lease_since;   /* start of the lease */
	_Atomic uint64_t passes;       /* launches without the lease, concurrent with the holder's work */
	uint64_t reserved[4];
};

/* Format of the file. Earlier releases store the lease in bytes that are unused here, and share the credit in the
 * seats with this release. */
struct turnstile_file {
	_Atomic uint64_t magic; /* written last */
	_Atomic uint32_t version, size;
	uint64_t unused[526];
	struct seat seats[TURNSTILE_SEATS];
};

/* Written by the agent and read by tenants: the tenant of each seat, and the number of changes. */
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

enum { TURNSTILE_PAGE_BYTES = 4096, TURNSTILE_TERMS_BYTES = 8192 }; /* in the agent's memory */

#endif
