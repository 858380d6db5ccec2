/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Learn the durations of kernels. A launch may take an unusual time because of other tenants, or because the kernel's
 * work has changed.
 */
#include "throttle/lengths.h"

#include "throttle/times.h"

#define ODD_TIMES 2	/* a launch is unusual if it takes longer than this multiple of the usual time */
#define ODD_LEAST_NS INT64_C(10000)	/* and if it differs by at least this from the usual time */
#define ODD_WEIGHT 32	/* weight of an unusual launch, compared with 1 for a usual one */
#define ODD_OFTEN 40	/* above this weight, the kernel has several durations */
#define ODD_MOST 128	/* maximum of the weight */
#define VARYING_PART 32	/* the average of such a kernel moves by 1 / VARYING_PART of each launch's deviation */
#define SETTLED 4	/* number of usual launches in a row that confirm the duration */

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

/* Estimate a launch. A shape that was never measured starts with its kernel's average. */
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

/* Update the average. The first launch may be unusual, so the second one replaces its value. If the tenant uses
 * several GPUs, use the shortest launch, because other tenants or other GPUs may have delayed the longer ones. If
 * each GPU used its own measured duration, the GPUs would run out of credit at different times. All these launches
 * are timed, so their final charge is exact. */
static void average(struct estimate *e, int64_t ns, bool least)
{
	e->ns = e->once || (least && ns < e->ns) ? ns : e->ns + (ns - e->ns) / 4;
	e->once = false;
}

/* Return a value above 0 if the launch took much longer than usual, or below 0 if much shorter. */
static int odd(const struct estimate *e, int64_t ns)
{
	if (e->once || (ns < e->ns + ODD_LEAST_NS && e->ns < ns + ODD_LEAST_NS))
		return 0;
	return ns > e->ns * ODD_TIMES ? 1 : ns * ODD_TIMES < e->ns ? -1 : 0;
}

/* Set the estimate of launches in flight. Return the time added for those after the last timed launch. */
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

/* Limit the correction. The maximum is the time in which no known work ran. The minimum is the time in which the
 * launches must have run. */
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

/* Return by how much the launches exceed their charge if each of them took `ns`. */
static int64_t beyond(struct sum launches, int64_t ns) { return ns * launches.count - launches.charged_ns; }

/* Handle an unusual launch. A single one does not predict the next, because another process's work may have interrupted
 * it. Two in a row mean that the kernel has a new duration. */
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
	/* Use the unusual value that is closer to the usual time. */
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

/* A kernel with several durations is charged with its average. No launch takes exactly this time. So each timed
 * launch also represents the untimed launches since the previous timing. All launches are equally likely to be
 * timed, so the sum is right. A launch may take long by chance, for example while another stream has work. Such a
 * launch represents at most the elapsed time. */
static int64_t learn_varying(struct busy *b, const struct launch *launch, struct estimate *e, int64_t ns)
{
	int64_t more = earlier(beyond(launch->untimed, ns), later(b->slack_ns - e->slack_ns, 0));
	b->slack_ns -= more;	/* the returned correction is complete */
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
