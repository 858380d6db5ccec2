/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The memory of a turnstile, as processes share it: throttle/turnstile.h says what it is for.
 *
 * A seat of zeros is valid and empty, and each field is a word of its own that is changed atomically: there is no lock, so a
 * process may be killed at any instruction and leaves nothing that others would have to mend.
 */
#ifndef FORMATS_TURNSTILE_H
#define FORMATS_TURNSTILE_H

#include <stdatomic.h>
#include <stdint.h>

#define TURNSTILE_MAGIC UINT64_C(0x5455504756464f00) /* "\0OFVGPUT" */

enum {
	TURNSTILE_VERSION = 1,
	TURNSTILE_SEATS = 64,
	TURNSTILE_PROCESSES = 4096, /* process 0 is nobody */
	TURNSTILE_TENANT = 64,
	/* Process N holds the lock of byte TURNSTILE_LOCKS + N, far behind the contents (vgpu_take_byte). */
	TURNSTILE_LOCKS = 1 << 20,
};

enum policy { POLICY_FIXED = 0, POLICY_CONTENDED = 1, POLICY_BURST = 2 };

/* A tenant's place. What the tenant may use follows from one number, paid_until: the moment at which its share of the
 * wall time will have covered the GPU time that it used. Later than now: it has to wait so long. All times are
 * nanoseconds of CLOCK_MONOTONIC (base/clock.h). */
struct seat {
	char tenant[TURNSTILE_TENANT];
	_Atomic uint32_t percent;
	_Atomic uint32_t policy;
	_Atomic int32_t priority; /* 0 is the most urgent */
	uint32_t unused;
	_Atomic int64_t paid_until;
	_Atomic int64_t active_until;  /* wants the GPU, if only to use up its credit as it comes */
	_Atomic int64_t waiting_until; /* stands at the turnstile: it could run now if it were its turn */
	_Atomic uint64_t used_ns;      /* GPU time, in all */
	_Atomic uint64_t throttled_ns; /* time that launches were held back */
	_Atomic int64_t due;           /* when the work that it has on this GPU should be done; 0: it has none */
	_Atomic int64_t lead;          /* by how much its credit here counts as better, as another of its GPUs has it */
	_Atomic uint64_t launches;     /* that were let through */
	_Atomic uint64_t lease;        /* process << 48 | microsecond until which it has the GPU; 0: none */
	_Atomic int64_t lease_since;   /* when it took that */
	_Atomic uint64_t passes;       /* launches that went through without the lease, beside the work of its holder */
	uint64_t reserved[4];
};

/* Of the file. Earlier releases have the lease in what is unused here, and share the credit in the seats with this one. */
struct turnstile_file {
	_Atomic uint64_t magic; /* written last */
	_Atomic uint32_t version, size;
	uint64_t unused[526];
	struct seat seats[TURNSTILE_SEATS];
};

/* What the agent makes and tenants only read: who has which seat, and how often that changed. */
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

enum { TURNSTILE_PAGE_BYTES = 4096, TURNSTILE_TERMS_BYTES = 8192 }; /* as the agent makes them */

#endif
