/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Time limits of the turnstile.
 */
#ifndef THROTTLE_TIMES_H
#define THROTTLE_TIMES_H

#include "base/clock.h"

#define IDLE_CREDIT_NS (100 * NS_PER_MS) /* maximum saved wall time of an idle tenant, multiplied by its share */
#define RESUME_NS (5 * NS_PER_MS)        /* a tenant without credit continues when its new credit suffices for this long */
#define RESUME_MOST_NS (50 * NS_PER_MS)  /* maximum time for which that tenant waits for this credit */
#define QUANTUM_NS (20 * NS_PER_MS)      /* length of a time slot, and of a turn while other processes of the tenant wait */
#define ACTIVE_NS (50 * NS_PER_MS)       /* a tenant wants the GPU for this long after its last launch */
#define GRACE_NS (2 * NS_PER_MS)         /* a mark that a tenant waits is valid for this long */
#define LEAD_MAX_NS (100 * NS_PER_MS)    /* maximum additional credit of a GPU, so that the tenant's GPUs run together */
#define OVERDUE_NS (NS_PER_MS / 2)       /* work that is late by this much may be waiting for the tenant's other GPUs */
#define OVERDUE_MOST_NS NS_PER_SECOND    /* work that is later than this does not wait for other GPUs */
#define POLL_NS (NS_PER_MS / 10)
#define BORROW_MAX_NS NS_PER_SECOND /* maximum debt of a borrower in wall time */
#define DEBT_MAX_NS (600 * NS_PER_SECOND) /* maximum debt of any tenant: a kernel of one minute at 10 percent */
#define SIBLING_DEBT_MAX_NS (60 * NS_PER_SECOND) /* maximum that a process pays for other processes of its tenant */
#define LEASE_MAX_NS NS_PER_SECOND /* maximum duration of a lease without renewal */
#define WATCH_NS NS_PER_MS         /* maximum sleep of a process that waits for a lease */
#define LEASE_EDGE_NS NS_PER_MS    /* a lease that ends this soon is taken again, because another process may take it */
#define DOUBT_NS (10 * NS_PER_SECOND) /* a tenant that blocked others for too long is ignored for this long */
#define DOUBT_GAP_NS (10 * NS_PER_MS) /* maximum time between two checks. A longer gap does not count as waiting */
#define SKEW_NS (2 * NS_PER_MS)    /* maximum by which a writer's clock may be ahead of a value that a reader read earlier */

static inline int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t earlier(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t within(int64_t ns, int64_t low, int64_t high) { return ns < low ? low : ns > high ? high : ns; }

#endif
