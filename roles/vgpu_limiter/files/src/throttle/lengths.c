/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Learn lengths. A launch may take an unusual time because of neighbours, or because the kernel has changed.
 */
#include "throttle/lengths.h"

#include "throttle/times.h"

#define ODD_TIMES 2	/* a launch longer than this multiple of the usual time is unusual, if the next one is usual, */
#define ODD_LEAST_NS INT64_C(10000)	/* and if the difference is at least this */
#define ODD_WEIGHT 32	/* an unusual launch weighs as much as this many usual ones, */
#define ODD_OFTEN 40	/* and above this weight the kernel has several lengths */
#define ODD_MOST 128	/* limit of the weight */
#define VARYING_PART 32	/* fraction of a launch's deviation that enters the average of such a kernel */
#define SETTLED 4	/* usual launches in a row that confirm the length */

static unsigned place_of(const void *function, uint64_t shape)
{
	return (uint32_t)((uint32_t)((uintptr_t)function >> 4) ^ (uint32_t)shape) * UINT32_C(2654435761) >> 22;	/* 10 bits: BUSY_ESTIMATES */
}

struct estimate *length_find(const struct busy *b, const void *function, uint64_t shape)
{
	struct estimate *e = (struct estimate *)&b->estimates[place_of(function, shape)];
	return e->function == function && e->shape == shape ? e : NULL;
}

bool length_varies(const struct estimate *e) { return e->often >= ODD_OFTEN; }

/* A new shape starts with the kernel's average. */
int64_t busy_estimate(const struct busy *b, const struct work *work, bool *known)
{
	const struct estimate *e = length_find(b, work->function, work->shape);
	*known = e != NULL;
	if (!e && work->shape)
		e = length_find(b, work->function, 0);
	return e ? e->ns : BUSY_UNKNOWN_NS;
}

static void add(struct busy *b, const void *function, uint64_t shape, int64_t ns)
{
	b->estimates[place_of(function, shape)] = (struct estimate){
		.function = function, .shape = shape, .ns = ns, .left_ns = BUSY_SAMPLE_NS,
		.slack_ns = b->slack_ns, .excess_ns = b->excess_ns, .once = true };
}

/* A first launch may be unusual, so the second one replaces its result. With several GPUs, use the tenant's shortest
 * launch, because other tenants or other GPUs may have delayed the longer ones. If each GPU used its own measured
 * length, the GPUs would run out of credit at different times. All these launches are timed, so their final charge
 * is exact. */
static void average(struct estimate *e, int64_t ns, bool least)
{
	e->ns = e->once || (least && ns < e->ns) ? ns : e->ns + (ns - e->ns) / 4;
	e->once = false;
}

/* Above 0: much longer than usual. Below 0: much shorter. */
static int odd(const struct estimate *e, int64_t ns)
{
	if (e->once || (ns < e->ns + ODD_LEAST_NS && e->ns < ns + ODD_LEAST_NS))
		return 0;
	return ns > e->ns * ODD_TIMES ? 1 : ns * ODD_TIMES < e->ns ? -1 : 0;
}

/* Set the estimate of launches in flight. Return the added time of those after the last timed one. */
static int64_t change_estimates(struct busy *b, const struct work *work, int64_t ns)
{
	int64_t sum = 0;
	for (uint32_t i = b->done + 1; i != b->put; i++) {
		struct launch *launch = &b->ring[i % BUSY_RING];
		if (launch->timed) {
			launch->untimed_ns += sum;
			sum = 0;
		} else if (launch->work.function == work->function && launch->work.shape == work->shape) {
			sum += ns - launch->estimate_ns;
			b->in_flight_ns += ns - launch->estimate_ns;
			launch->estimate_ns = ns;
		}
	}
	b->untimed_ns += sum;
	return sum;
}

/* Limit the correction: at most the time in which no known work ran, at least the time in which the launches must
 * have run. */
static int64_t arrears(struct busy *b, struct estimate *e, int64_t more)
{
	int64_t slack = b->slack_ns - e->slack_ns, excess = b->excess_ns - e->excess_ns;
	if (more > slack)
		more = slack > 0 ? slack : 0;
	if (more < -excess)
		more = excess > 0 ? -excess : 0;
	if (more > 0)
		b->slack_ns -= more;
	else
		b->excess_ns += more;
	return more;
}

static void is_accounted_for(const struct busy *b, struct estimate *e)
{
	e->slack_ns = b->slack_ns;
	e->excess_ns = b->excess_ns;
}

/* The time beyond their charge, if each launch took this long. */
static int64_t beyond(struct sum launches, int64_t ns) { return ns * launches.count - launches.charged_ns; }

/* One unusual launch does not predict the next, because another process's work may have interrupted it. After two in
 * a row the kernel has a new length. */
static int64_t learn_odd(struct busy *b, const struct launch *launch, struct estimate *e, int64_t ns, int sign)
{
	int64_t more;
	e->often += ODD_WEIGHT;
	e->unsettled = SETTLED;
	if (e->odd != sign) {
		e->odd = sign;
		e->odd_ns = ns;
		e->doubtful = launch->untimed;
		return 0;
	}
	/* Use the value nearer to the usual one. */
	if ((ns < e->odd_ns) != (sign > 0))
		ns = e->odd_ns;
	more = arrears(b, e, beyond(launch->untimed, ns) + beyond(e->doubtful, ns));
	e->untimed.charged_ns += change_estimates(b, &launch->work, ns);
	e->ns = ns;
	e->odd = 0;
	e->often = 0;
	is_accounted_for(b, e);
	return more;
}

/* A kernel of several lengths is charged by its average. No launch takes exactly that, so each timed launch also
 * represents those since the previous one. All are equally likely to be timed, so the sum is right. A launch that
 * was long by chance, for example beside work of another stream, represents at most the elapsed time. */
static int64_t learn_varying(struct busy *b, const struct launch *launch, struct estimate *e, int64_t ns)
{
	int64_t more = earlier(beyond(launch->untimed, ns), later(b->slack_ns - e->slack_ns, 0));
	b->slack_ns -= more;	/* returned amounts are not accounted further */
	e->ns += (ns - e->ns) / VARYING_PART;
	return more;
}

static int64_t learn_length(struct busy *b, const struct launch *launch, int64_t ns)
{
	struct estimate *e = length_find(b, launch->work.function, launch->work.shape);
	if (!e) {
		add(b, launch->work.function, launch->work.shape, ns);
		return 0;
	}
	int sign = odd(e, ns);
	if (length_varies(e)) {
		e->often += sign && e->often < ODD_MOST ? ODD_WEIGHT : -1;
		e->odd = 0;
		e->unsettled = 0;
		return learn_varying(b, launch, e, ns);
	}
	if (sign)
		return learn_odd(b, launch, e, ns, sign);
	average(e, ns, launch->together);
	e->odd = 0;
	e->often -= e->often > 0;
	e->unsettled -= e->unsettled > 0;
	is_accounted_for(b, e);
	return 0;
}

int64_t length_learn(struct busy *b, const struct launch *launch, int64_t ns)
{
	struct estimate *all = length_find(b, launch->work.function, 0);
	if (launch->work.shape && all)
		average(all, ns, launch->together);
	else if (launch->work.shape)
		add(b, launch->work.function, 0, ns);
	return learn_length(b, launch, ns);
}
