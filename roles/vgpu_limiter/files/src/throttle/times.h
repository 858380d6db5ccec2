/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * How long things take at the turnstile.
 */
#ifndef THROTTLE_TIMES_H
#define THROTTLE_TIMES_H

#include "base/clock.h"

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

static inline int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t earlier(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t within(int64_t ns, int64_t low, int64_t high) { return ns < low ? low : ns > high ? high : ns; }

#endif
