/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The turnstile of a GPU: a small piece of memory for each GPU, mapped by every throttled process of every tenant on it. It
 * holds what a tenant has used and may use (seats) and whose turn it is (the lease). It is the agent's (agent.h), or a file
 * where no agent answers. The file's locks tell who lives in either case.
 *
 * A file of zeros is a valid, empty turnstile, and each field is a word of its own that is changed atomically: there is
 * no lock, so a process may be killed at any instruction and leaves nothing that others would have to mend.
 *
 * Every tenant of the GPU can write the file, so no value of it is trusted: each is bounded where it is read, by what an
 * honest process can have written at that moment, and counts as absent beyond that. What a tenant's own quota says is
 * taken from the quota. One wrong value so costs others a bounded delay; who writes all the time still fights the limiter.
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
#define QUANTUM_NS (20 * NS_PER_MS)      /* a slot of the clock, and a turn while other processes of the tenant wait */
#define ACTIVE_NS (50 * NS_PER_MS)       /* a tenant counts as wanting the GPU this long after its last launch */
#define GRACE_NS (2 * NS_PER_MS)         /* and as waiting this long after it last said so */
#define LEAD_MAX_NS (100 * NS_PER_MS)    /* how far a tenant's GPUs may go ahead of their credit to go together */
#define OVERDUE_NS (NS_PER_MS / 2)       /* work that is so late may be waiting for the tenant's other GPUs, */
#define OVERDUE_MOST_NS NS_PER_SECOND    /* but not if it is later than that */
#define POLL_NS (NS_PER_MS / 10)
#define BORROW_MAX_NS NS_PER_SECOND /* what a borrower owes at most, in wall time */
#define DEBT_MAX_NS (600 * NS_PER_SECOND) /* and anyone: a kernel of a minute at 10 percent */
#define SIBLING_DEBT_MAX_NS (60 * NS_PER_SECOND) /* a process pays no more of what other processes of its tenant used */
#define LEASE_MAX_NS NS_PER_SECOND /* no lease runs longer without being renewed */
#define SKEW_NS (2 * NS_PER_MS)    /* by how much the clock of a writer may be ahead of that which a reader read before */

enum policy { POLICY_FIXED = 0, POLICY_CONTENDED = 1, POLICY_BURST = 2 };

/* What a tenant's quota says of its share of a GPU. */
struct terms {
	uint32_t percent;
	uint32_t policy;
	int32_t priority;
};

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
	_Atomic int64_t due;           /* when the work that it has on this GPU should be done; 0: it has none */
	_Atomic int64_t lead;          /* by how much its credit here counts as better, as another of its GPUs has it */
	_Atomic uint64_t launches;     /* that were let through */
	uint64_t reserved[7];
};

struct turnstile {
	_Atomic uint64_t magic; /* written last */
	_Atomic uint32_t version, size;
	_Atomic uint64_t lease; /* process << 48 | microsecond until which it holds */
	_Atomic int64_t lease_since;
	_Atomic uint64_t passes; /* launches that went through without the lease, beside the work of its holder */
	uint64_t reserved[11];
	_Atomic uint8_t seat_of[TURNSTILE_PROCESSES]; /* seat + 1 of a process; 0: none yet */
	struct seat seats[TURNSTILE_SEATS];
};

/* What of a seat decides whose turn it is. */
struct claim {
	bool credit;
	int32_t priority;
	int64_t paid_until;
	uint32_t place; /* in the order of tenants for this slot of the clock */
};

/* --- arithmetic, without a clock --- */

/* The new paid_until after `busy` ns of GPU time that were asked for at `asked` (below 0: it was less than had been
 * charged before); not more than `most` after `now`. */
int64_t turnstile_charge(int64_t paid_until, int64_t asked, int64_t now, int64_t busy, unsigned percent, int64_t most);
/* How much wall time pays for so much GPU time. */
int64_t turnstile_wall(int64_t busy, unsigned percent);
/* How much wall time a tenant without credit waits for beyond what it owes: turns cost something. */
int64_t turnstile_resume(unsigned percent);
/* Above 0: a's right comes first. Credit comes before priority, so that a borrower never stands before a tenant that uses
 * its own share. Tenants of equal rights have each slot of the clock in another order, which is the same on all GPUs of
 * the host: so the processes of a tenant that wait for each other on several GPUs run there at the same time. */
int turnstile_order(struct claim a, struct claim b);
/* A tenant's place in a slot's order. Any two tenants change places from each slot to the next, in pairs. */
uint32_t turnstile_place(const char *tenant, int64_t now);
/* As turnstile_order, then who is further behind its share: for a lease that nobody has. */
bool turnstile_before(struct claim a, struct claim b);

/* --- the shared words --- */

/* Whether a mapped turnstile is one that this library knows; a new one is marked as such. */
bool turnstile_adopt(struct turnstile *t);
/* Shows the terms to others. */
void turnstile_show(struct turnstile *t, int seat, struct terms terms);
/* The words of a seat as they are believed. */
int64_t turnstile_paid(const struct turnstile *t, int seat, int64_t now);
struct terms turnstile_terms(const struct turnstile *t, int seat);
bool turnstile_is_active(const struct turnstile *t, int seat, int64_t now);
bool turnstile_is_waiting(const struct turnstile *t, int seat, int64_t now);
/* Whether the tenant's work on this GPU is late, so that it may be waiting for work on another. */
bool turnstile_is_overdue(const struct turnstile *t, int seat, int64_t now);
/* Whether it has work on this GPU that is not late yet. */
bool turnstile_is_working(const struct turnstile *t, int seat, int64_t now);
/* Whether no other active tenant comes before this one in the slot's order. */
bool turnstile_has_slot(const struct turnstile *t, int seat, int64_t now);
/* A tenant says that it wants the GPU, or waits, until then; a later time stays if it is believable. */
void turnstile_set_active(struct turnstile *t, int seat, int64_t now, int64_t until);
void turnstile_set_waiting(struct turnstile *t, int seat, int64_t now, int64_t until);
/* Lowers paid_until to `most`. Returns what it is then. */
int64_t turnstile_limit_debt(struct turnstile *t, int seat, int64_t now, int64_t most);

/* A borrower that waits counts as having credit only with enough of it for a turn; the others do not wait before. */
struct claim turnstile_claim(const struct turnstile *t, int seat, struct terms terms, int64_t now, bool holds);
/* The first of the other seats that wait; false if none does. */
bool turnstile_rival(const struct turnstile *t, int seat, int64_t now, struct claim *rival);
/* Whether any other tenant wants the GPU. */
bool turnstile_contended(const struct turnstile *t, int seat, int64_t now);
/* What a tenant may owe at most. */
int64_t turnstile_most_debt(struct terms terms);
/* Charges GPU time to a seat's share. */
void turnstile_spend(struct turnstile *t, int seat, struct terms terms, int64_t asked, int64_t now, int64_t busy);

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
