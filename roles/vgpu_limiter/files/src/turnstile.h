/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The turnstile of a GPU: one small file for each GPU, mapped by every throttled process of every tenant on it. It holds
 * what a tenant has used and may use (seats) and whose turn it is (the lease).
 *
 * A file of zeros is a valid, empty turnstile, and each field is a word of its own that is changed atomically: there is
 * no lock, so a process may be killed at any instruction and leaves nothing that others would have to mend.
 *
 * Whoever may write the file may lie in it: the limiter divides a GPU among tenants that do not fight it.
 */
#ifndef OPENFLEET_TURNSTILE_H
#define OPENFLEET_TURNSTILE_H

#include <stdatomic.h>
#include <stdbool.h>
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

/* All times are nanoseconds of CLOCK_MONOTONIC, which the processes of a host share. */
#define NS_PER_MS INT64_C(1000000)
#define NS_PER_SECOND INT64_C(1000000000)
#define IDLE_CREDIT_NS (100 * NS_PER_MS) /* a tenant that was idle may have saved so much wall time, times its share */
#define RESUME_NS (5 * NS_PER_MS)        /* who ran out of credit goes on when it may have the GPU for so long again, */
#define RESUME_MOST_NS (50 * NS_PER_MS)  /* but waits no longer than this for it */
#define QUANTUM_NS (20 * NS_PER_MS)      /* a turn, while others wait that have the same right */
#define ACTIVE_NS (50 * NS_PER_MS)       /* a tenant counts as wanting the GPU this long after its last launch */
#define GRACE_NS (2 * NS_PER_MS)         /* and as waiting this long after it last said so */
#define POLL_NS (NS_PER_MS / 10)
#define BORROW_MAX_NS NS_PER_SECOND /* what a borrower owes at most, in wall time */
#define DEBT_MAX_NS (600 * NS_PER_SECOND) /* and anyone: a kernel of a minute at 10 percent */
#define LEASE_MAX_NS NS_PER_SECOND /* no lease runs longer without being renewed */

enum policy { POLICY_FIXED = 0, POLICY_CONTENDED = 1, POLICY_BURST = 2 };

/* A tenant's place. What the tenant may use follows from one number, paid_until: the moment at which its share of the
 * wall time will have covered the GPU time that it used. Later than now: it has to wait so long. */
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
	uint64_t reserved[10];
};

struct turnstile {
	_Atomic uint64_t magic; /* written last */
	_Atomic uint32_t version, size;
	_Atomic uint64_t lease; /* process << 48 | microsecond until which it holds */
	_Atomic int64_t lease_since;
	uint64_t reserved[12];
	_Atomic uint8_t seat_of[TURNSTILE_PROCESSES]; /* seat + 1 of a process; 0: none yet */
	struct seat seats[TURNSTILE_SEATS];
};

/* What of a seat decides whose turn it is. */
struct claim {
	bool credit;
	int32_t priority;
	int64_t paid_until;
};

/* --- arithmetic, without a clock --- */

/* The new paid_until after `busy` ns of GPU time that were asked for at `asked` (below 0: it was less than had been
 * charged before); not more than `most` after `now`. */
int64_t turnstile_charge(int64_t paid_until, int64_t asked, int64_t now, int64_t busy, unsigned percent, int64_t most);
/* How much wall time pays for so much GPU time. */
int64_t turnstile_wall(int64_t busy, unsigned percent);
/* How much wall time a tenant without credit waits for beyond what it owes: turns cost something. */
int64_t turnstile_resume(unsigned percent);
/* Above 0: a's right comes first, whatever turns there were; 0: they take turns. Credit comes before priority, so that a
 * borrower never stands before a tenant that uses its own share. */
int turnstile_order(struct claim a, struct claim b);
/* As turnstile_order, then who is further behind its share: for a lease that nobody has. */
bool turnstile_before(struct claim a, struct claim b);

/* --- the shared words --- */

/* Whether a mapped turnstile is one that this library knows; a new one is marked as such. */
bool turnstile_adopt(struct turnstile *t);
/* A borrower that waits counts as having credit only with enough of it for a turn; the others do not wait before. */
struct claim turnstile_claim(const struct turnstile *t, int seat, int64_t now, bool holds);
/* The first of the other seats that wait; false if none does. */
bool turnstile_rival(const struct turnstile *t, int seat, int64_t now, struct claim *rival);
/* Whether any other tenant wants the GPU. */
bool turnstile_contended(const struct turnstile *t, int seat, int64_t now);
/* Charges GPU time to a seat's share. */
void turnstile_spend(struct turnstile *t, int seat, int64_t asked, int64_t now, int64_t busy);

/* The process that has the lease now; 0: nobody. */
unsigned turnstile_holder(const struct turnstile *t, int64_t now);
/* The process named by the lease, be it over or not. */
unsigned turnstile_last_holder(const struct turnstile *t);
/* Takes a lease that is free, over, or held by `dead`. None runs longer than LEASE_MAX_NS from now. */
bool turnstile_take(struct turnstile *t, unsigned process, int64_t now, int64_t until, unsigned dead);
/* Prolongs one's own; false if another has it by now. */
bool turnstile_renew(struct turnstile *t, unsigned process, int64_t now, int64_t until);
void turnstile_give(struct turnstile *t, unsigned process);

#endif
