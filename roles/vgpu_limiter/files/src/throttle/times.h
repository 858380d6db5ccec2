/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Time limits of the turnstile.
 */
#ifndef THROTTLE_TIMES_H
#define THROTTLE_TIMES_H

#include "base/clock.h"

#define IDLE_CREDIT_NS (100 * NS_PER_MS) /* limit of saved wall time of an idle tenant, times its share */
#define RESUME_NS (5 * NS_PER_MS)        /* a tenant without credit continues when it may have the GPU for this long, */
#define RESUME_MOST_NS (50 * NS_PER_MS)  /* but waits at most this long for it */
#define QUANTUM_NS (20 * NS_PER_MS)      /* a clock slot, and a turn while other processes of the tenant wait */
#define ACTIVE_NS (50 * NS_PER_MS)       /* time after its last launch for which a tenant wants the GPU */
#define GRACE_NS (2 * NS_PER_MS)         /* time for which a waiting mark is valid */
#define LEAD_MAX_NS (100 * NS_PER_MS)    /* limit by which a tenant's GPUs may exceed their credit to run together */
#define OVERDUE_NS (NS_PER_MS / 2)       /* work so late may be waiting for the tenant's other GPUs, */
#define OVERDUE_MOST_NS NS_PER_SECOND    /* but not if it is later than this */
#define POLL_NS (NS_PER_MS / 10)
#define BORROW_MAX_NS NS_PER_SECOND /* limit of a borrower's debt in wall time */
#define DEBT_MAX_NS (600 * NS_PER_SECOND) /* and of any tenant's: a kernel of a minute at 10 percent */
#define SIBLING_DEBT_MAX_NS (60 * NS_PER_SECOND) /* limit of a process's payment for other processes of its tenant */
#define LEASE_MAX_NS NS_PER_SECOND /* limit of a lease without renewal */
#define WATCH_NS NS_PER_MS         /* limit of a waiter's sleep for a lease */
#define LEASE_EDGE_NS NS_PER_MS    /* a lease that ends so soon is taken again, not renewed, as another may take it */
#define DOUBT_NS (10 * NS_PER_SECOND) /* time for which a tenant that blocked others for too long is ignored */
#define DOUBT_GAP_NS (10 * NS_PER_MS) /* limit between two checks. Longer gaps do not count as waiting */
#define SKEW_NS (2 * NS_PER_MS)    /* limit by which a writer's clock may be ahead of a reader's earlier value */

static inline int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t earlier(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t within(int64_t ns, int64_t low, int64_t high) { return ns < low ? low : ns > high ? high : ns; }

#endif
