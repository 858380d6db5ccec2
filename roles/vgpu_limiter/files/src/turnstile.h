/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The turnstile of a GPU: a seat for each tenant, which the tenant's throttled processes write and those of all tenants on
 * the GPU read. A seat says what its tenant has used and may use, and until when one of its processes has the GPU (the lease).
 *
 * Where the agent runs (agent.h), each seat is a page of its own that only its tenant can write, and the agent says which
 * tenant has which seat, and on what terms. Otherwise all seats lie in one file. The file's locks tell who lives in either case.
 *
 * A seat of zeros is valid and empty, and each field is a word of its own that is changed atomically: there is no lock, so a
 * process may be killed at any instruction and leaves nothing that others would have to mend.
 *
 * The lease. No word is shared by all tenants, so none can be taken by an atomic exchange. A process writes the lease into its
 * own seat, then looks at the others': of two that do so at once at least one sees the other, and who sees another withdraws.
 *
 * No value of another tenant is trusted: each is bounded where it is read, by what an honest process can have written at that
 * moment, and counts as absent beyond that. What a tenant's own quota says is taken from the quota. A tenant that keeps others
 * waiting for longer than its terms allow is left out of account for a while (struct doubt).
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
#define WATCH_NS NS_PER_MS         /* a waiter sleeps no longer than this for a lease to be given back */
#define LEASE_EDGE_NS NS_PER_MS    /* one that ends so soon is taken again, not prolonged: another may take it meanwhile */
#define DOUBT_NS (10 * NS_PER_SECOND) /* for so long a tenant does not count that kept others waiting for too long */
#define DOUBT_GAP_NS (10 * NS_PER_MS) /* between two looks: what is longer does not count as having waited */
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

/* What a process makes of another tenant that keeps it waiting though it has credit. */
struct doubt {
	uint64_t dead;     /* the lease of a process that is known to be dead, as it is in the seat; 0: none */
	int64_t waited_ns; /* for the seat's lease, since this process had its own turn last */
	int64_t until_ns;  /* the seat does not count until then */
};

/* A GPU's turnstile as a process sees it. */
struct turnstile {
	struct seat *seats[TURNSTILE_SEATS];  /* NULL: free. Of pages only the own one can be written */
	const struct turnstile_terms *terms; /* NULL: each seat says its own */
	int count;                           /* seats from here on were free when it looked last (turnstile_count) */
	int holder;                          /* seat + 1 of the tenant that it waited for last; 0: none */
	int64_t waited_ns;                   /* when that was */
	int64_t yielded_ns;                  /* for so long it has let others go first, and none has taken the GPU */
	int64_t lost_ns;                     /* when it gave up a lease that another tenant had too */
	struct doubt doubts[TURNSTILE_SEATS];
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

/* --- the words of a seat --- */

/* Whether a mapped file is one that this library knows; a new one is marked as such. */
bool turnstile_adopt(struct turnstile_file *file);
/* Shows the terms to others. */
void turnstile_show(struct seat *s, struct terms terms);
/* The words of a seat as they are believed. */
int64_t turnstile_paid(const struct seat *s, int64_t now);
bool turnstile_is_active(const struct seat *s, int64_t now);
bool turnstile_is_waiting(const struct seat *s, int64_t now);
/* Whether the tenant's work on this GPU is late, so that it may be waiting for work on another. */
bool turnstile_is_overdue(const struct seat *s, int64_t now);
/* Whether it has work on this GPU that is not late yet. */
bool turnstile_is_working(const struct seat *s, int64_t now);
/* A tenant says that it wants the GPU, or waits, until then; a later time stays if it is believable. */
void turnstile_set_active(struct seat *s, int64_t now, int64_t until);
void turnstile_set_waiting(struct seat *s, int64_t now, int64_t until);
/* Lowers paid_until to `most`. Returns what it is then. */
int64_t turnstile_limit_debt(struct seat *s, int64_t now, int64_t most);
/* What a tenant may owe at most. */
int64_t turnstile_most_debt(struct terms terms);
/* Charges GPU time to a seat's share. */
void turnstile_spend(struct seat *s, struct terms terms, int64_t asked, int64_t now, int64_t busy);

/* --- a seat among the others --- */

/* Looks which seats have a tenant. */
void turnstile_count(struct turnstile *t);
/* A seat's terms as others believe them: the agent's, or else those in the seat. */
struct terms turnstile_terms(const struct turnstile *t, int seat);
/* Whether no other active tenant comes before this one in the slot's order. */
bool turnstile_has_slot(const struct turnstile *t, int seat, int64_t now);
/* A borrower that waits counts as having credit only with enough of it for a turn; the others do not wait before. */
struct claim turnstile_claim(const struct turnstile *t, int seat, struct terms terms, int64_t now, bool holds);
/* The first of the other seats that wait, and its claim; -1 if none does. */
int turnstile_rival(const struct turnstile *t, int seat, int64_t now, struct claim *rival);
/* Whether any other tenant wants the GPU. */
bool turnstile_contended(const struct turnstile *t, int seat, int64_t now);
/* How many launches of any tenant went beside the work of a lease's holder. */
uint64_t turnstile_passes(const struct turnstile *t);

/* --- the lease --- */

/* The process of the seat that has the lease now; 0: none. */
unsigned turnstile_process(const struct turnstile *t, int seat, int64_t now);
/* The process that the seat's lease names, be it over or not. */
unsigned turnstile_last_process(const struct turnstile *t, int seat);
/* The seat that has the GPU, another than `except` (or -1); -1: none has. */
int turnstile_holder(const struct turnstile *t, int except, int64_t now);
/* Takes the GPU if no other seat has it, and no other process of this one. No lease runs longer than LEASE_MAX_NS from now. */
bool turnstile_take(struct turnstile *t, int seat, unsigned process, int64_t now, int64_t until);
/* Prolongs the own lease, or takes it again where it is over; false if another process has the GPU by now. */
bool turnstile_renew(struct turnstile *t, int seat, unsigned process, int64_t now, int64_t until);
/* Gives the own lease back, and wakes all that wait for that. */
void turnstile_give(struct turnstile *t, int seat, unsigned process);
/* Whether another tenant has the GPU too, and had it first: one of the two was held up between its look and its writing. */
bool turnstile_is_second(const struct turnstile *t, int seat, int64_t now);
/* The process that has the seat's lease is dead: that lease counts no more. */
void turnstile_bury(struct turnstile *t, int seat, unsigned process);

/* A lease that is waited for: half of its word, which names its process, and what that was. */
struct watch {
	const void *half; /* NULL: none is waited for */
	uint32_t value;
};
struct watch turnstile_watch(const struct turnstile *t, int seat);
/* For how long a waiter may sleep: until the lease ends by itself, and not longer than `most`. */
int64_t turnstile_watch_ns(const struct turnstile *t, int seat, int64_t now, int64_t most);

enum watched {
	WATCHED_GIVEN, /* it was woken: the lease was given back, or a neighbour says so */
	WATCHED_LONG,  /* the time is over, or a signal came */
	WATCHED_NOT,   /* it did not sleep: the lease has changed, or the kernel cannot wait for it */
};
/* Sleeps until the lease is given back, at most so long. The seat need not be mapped any more. */
enum watched turnstile_sleep(struct watch watch, int64_t ns);

/* --- doubts --- */

/* The tenant of `seat` waits for the lease of `other`, with the claim `own`. */
void turnstile_waits_for(struct turnstile *t, int seat, int other, struct claim own, int64_t now);
/* It would let `other` go first, and no tenant has the GPU. False: it has done so for long enough. */
bool turnstile_yields_to(struct turnstile *t, int other, int64_t now);
/* It has had a turn. */
void turnstile_had_turn(struct turnstile *t, int64_t now);

#endif
