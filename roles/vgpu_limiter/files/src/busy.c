/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Measuring. An event is recorded just before a launch and one just after it. What lies between is
 * time that the GPU worked for this process, if nobody else had it: gaps on the host and copies lie
 * outside. The first event is done at once where the GPU has nothing else to do, and the launch that follows
 * may take long on the host, as one that loads its function does: that time is taken off. Launches in several
 * streams overlap, so the stretches are put together before they are summed.
 *
 * Sampling. Events cost host time, and keep kernels from overlapping. A kernel of known length is timed again only after
 * some millisecond of work of it, with two events; in between it is taken to need that length, and to be done when that time
 * has gone by. The distance between samples varies at random, so that on average each launch is as likely to be timed as any
 * other.
 * Where several streams have work, one launch's time cannot be told from what the other streams' launches took meanwhile.
 * There a row of launches is timed: the first ends what went before, and the others share what comes after.
 * In a stream with dependent launches (programmatic dependent launch) only kernels of unknown length are timed: an event
 * between two such launches would keep the second from starting early.
 *
 * Events are made and asked in the relaxed capture mode: a capture that goes on in another stream must not notice that. It does
 * not mind events that are recorded in other streams.
 */
#include "busy.h"
#include "internal.h"

/* The driver tells time as float milliseconds: after four seconds the step is a quarter microsecond. */
#define ANCHOR_AGE_NS INT64_C(4000000000)
#define CLOCK_DRIFT 4096	/* one clock gains less than this part of the time on the other */
#define ODD_TIMES 2	/* one that took more than so many times as long as usual says nothing of the next, if that is as usual, */
#define ODD_LEAST_NS INT64_C(10000)	/* and by no less than this */
#define ODD_WEIGHT 32	/* one that is odd counts as much as so many that are not, */
#define ODD_OFTEN 40	/* and with so much they belong to the kernel: it has several lengths */
#define ODD_MOST 128	/* more than that does not count */
#define VARYING_PART 32	/* of what a launch of such a kernel took more than on average, this part goes into the average */
#define SETTLED 4	/* so many in a row that are as usual show that the length is known again */
#define LEAST_NS INT64_C(1000)	/* what a launch counts for at least until the next is timed */
#define ASK_LEAST_NS INT64_C(50000)
#define ASK_MOST_NS INT64_C(100000)	/* how long a timed launch that was not done is not asked for, if it should be done, */
#define ASK_EXPECTED_NS INT64_C(500000)	/* or if not */

/* --- estimates --- */

static unsigned place_of(const void *function, uint64_t shape)
{
	return (uint32_t)((uint32_t)((uintptr_t)function >> 4) ^ (uint32_t)shape) * UINT32_C(2654435761) >> 22;	/* 10 bits: BUSY_ESTIMATES */
}

static struct estimate *find(const struct busy *b, const void *function, uint64_t shape)
{
	struct estimate *e = (struct estimate *)&b->estimates[place_of(function, shape)];
	return e->function == function && e->shape == shape ? e : NULL;
}

/* In a shape that is new a kernel is taken to need what it took on average. */
int64_t busy_estimate(const struct busy *b, const struct work *work, bool *known)
{
	const struct estimate *e = find(b, work->function, work->shape);
	*known = e != NULL;
	if (!e && work->shape)
		e = find(b, work->function, 0);
	return e ? e->ns : BUSY_UNKNOWN_NS;
}

static void add(struct busy *b, const void *function, uint64_t shape, int64_t ns)
{
	b->estimates[place_of(function, shape)] = (struct estimate){
		.function = function, .shape = shape, .ns = ns, .left_ns = BUSY_SAMPLE_NS,
		.slack_ns = b->slack_ns, .excess_ns = b->excess_ns, .once = true };
}

/* A first launch may be an odd one: the second replaces what was learned of it. Of a tenant on several GPUs the shortest launch
 * says most: others may have had the GPU besides, or the work on the other GPUs was waited for. If its GPUs took that for the
 * kernel's length, each by what it met, they would run out of credit at different times. All its launches are timed, so that
 * what is charged in the end is what they took. */
static void average(struct estimate *e, int64_t ns, bool least)
{
	e->ns = e->once || (least && ns < e->ns) ? ns : e->ns + (ns - e->ns) / 4;
	e->once = false;
}

/* Above 0: much longer than usual; below 0: much shorter. */
static int odd(const struct estimate *e, int64_t ns)
{
	if (e->once || (ns < e->ns + ODD_LEAST_NS && e->ns < ns + ODD_LEAST_NS))
		return 0;
	return ns > e->ns * ODD_TIMES ? 1 : ns * ODD_TIMES < e->ns ? -1 : 0;
}

/* Launches that are on their way are taken to need so long. Returns how much more those are that came after the last timed one. */
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

/* What is charged of that: no more than the time in which nothing that is known ran, and no less than what the launches cannot
 * have had. */
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

/* What launches took more than they were charged for, if they took so long each. */
static int64_t beyond(struct sum launches, int64_t ns) { return ns * launches.count - launches.charged_ns; }

/* One that is odd says nothing of the next: another process's work may have come in between. Of two in a row that is not
 * believed: the kernel takes another time now. */
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
	/* Of the two the one that is nearer to the usual. */
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

/* A kernel of several lengths is taken to need what it takes on average. As that is never what it takes, each launch that is
 * timed also stands for those since the one before: each is as likely to be timed as any other, so that the sum is right. */
static int64_t learn_varying(const struct launch *launch, struct estimate *e, int64_t ns)
{
	int64_t more = beyond(launch->untimed, ns);
	e->ns += (ns - e->ns) / VARYING_PART;
	return more;
}

/* Returns what is to be charged for other launches of the same. */
static int64_t learn_length(struct busy *b, const struct launch *launch, int64_t ns)
{
	struct estimate *e = find(b, launch->work.function, launch->work.shape);
	if (!e) {
		add(b, launch->work.function, launch->work.shape, ns);
		return 0;
	}
	int sign = odd(e, ns);
	if (e->often >= ODD_OFTEN) {
		e->often += sign && e->often < ODD_MOST ? ODD_WEIGHT : -1;
		e->odd = 0;
		e->unsettled = 0;
		is_accounted_for(b, e);
		return learn_varying(launch, e, ns);
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

static int64_t learn(struct busy *b, const struct launch *launch, int64_t ns)
{
	struct estimate *all = find(b, launch->work.function, 0);
	if (launch->work.shape && all)
		average(all, ns, launch->together);
	else if (launch->work.shape)
		add(b, launch->work.function, 0, ns);
	return learn_length(b, launch, ns);
}

/* --- which launches are timed --- */

static bool has_dependent(const struct busy *b, CUstream stream)
{
	for (int i = 0; i < BUSY_DEPENDENT; i++)
		if (b->dependent[i] == stream && (unsigned)i < b->dependents)
			return true;
	return false;
}

void busy_forget_stream(struct busy *b, CUstream stream)
{
	for (int i = 0; i < BUSY_DEPENDENT; i++)
		if (b->dependent[i] == stream)
			b->dependent[i] = (CUstream)-1;	/* no stream */
}

/* Work of a kernel until it is timed again. A row of launches is so much rarer, and what varies is timed more often: each that
 * is timed stands for fewer then. */
static int64_t distance(struct busy *b, const struct estimate *e, bool row)
{
	int64_t each = (e->often < ODD_OFTEN ? BUSY_SAMPLE_NS : BUSY_SAMPLE_NS / 4) * (row ? BUSY_WINDOW + 1 : 1);
	b->noise = b->noise * UINT32_C(1664525) + UINT32_C(1013904223);
	return each / 2 + ((each * (b->noise >> 16)) >> 16);
}

static bool its_turn(struct busy *b, struct estimate *e)
{
	bool in_window = b->window > 0;
	b->window -= in_window;
	e->left_ns -= e->ns > LEAST_NS ? e->ns : LEAST_NS;
	return in_window || e->left_ns <= 0 || e->unsettled > 0;
}

static void choose(struct busy *b, struct launch *launch, bool all)
{
	struct estimate *e = find(b, launch->work.function, launch->work.shape);
	bool unknown = !e || e->once, in_window = b->window > 0;
	if (launch->work.dependent && !has_dependent(b, launch->stream))
		b->dependent[b->dependents++ % BUSY_DEPENDENT] = launch->stream;
	launch->edge = b->untimed > 0 && (b->untimed_mixed || b->untimed_stream != launch->stream);
	bool dependent = has_dependent(b, launch->stream);
	launch->learns = unknown && (!dependent || b->learners < BUSY_LEARNERS);
	launch->timed = launch->learns || all || (!unknown && !dependent && its_turn(b, e));
	b->learners += launch->learns;
	if (!launch->timed) {
		if (e)
			e->untimed = (struct sum){ e->untimed.count + 1, e->untimed.charged_ns + launch->estimate_ns };
		b->untimed_ns += launch->estimate_ns;
		b->untimed_mixed = launch->edge || (b->untimed > 0 && b->untimed_mixed);
		b->untimed_stream = launch->stream;
		b->untimed++;
		return;
	}
	/* The last of a window is no edge of another: what was launched before the window has gone by. */
	launch->edge = launch->edge && !in_window;
	if (launch->edge)
		b->window = BUSY_WINDOW;
	if (e)
		e->left_ns = distance(b, e, launch->edge || in_window);
	launch->untimed = e ? e->untimed : (struct sum){ 0 };
	if (e && !launch->edge)	/* of an edge's own time nothing is learned */
		e->untimed = (struct sum){ 0 };
	launch->untimed_ns = b->untimed_ns;
	b->untimed_ns = 0;
}

/* --- events --- */

static int relax(void)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	REAL(cuThreadExchangeStreamCaptureMode)(&mode);
	return mode;
}

static void restore(int mode) { REAL(cuThreadExchangeStreamCaptureMode)(&mode); }

struct launch *busy_reserve(struct busy *b, const struct work *work, CUstream stream, struct others others, bool all, int64_t now)
{
	struct launch *launch = &b->ring[b->put % BUSY_RING];
	bool known;
	launch->work = *work;
	launch->stream = stream;
	launch->asked_ns = now;
	launch->estimate_ns = launch->charged_ns = busy_estimate(b, work, &known);
	launch->first = b->in_flight_ns < BUSY_HOST_NS;
	launch->others = others;
	launch->together = all;
	launch->host_ns = 0;
	if (busy_is_idle(b))
		b->done_ns = now;
	choose(b, launch, all);
	b->in_flight_ns += launch->estimate_ns;
	b->put++;
	atomic_store(&launch->phase, LAUNCH_BEGUN);
	return launch;
}

static bool create(CUevent *event)
{
	int mode = relax();
	bool created = REAL(cuEventCreate)(event, CU_EVENT_DEFAULT) == CUDA_SUCCESS;
	restore(mode);
	if (!created)
		*event = NULL;
	return created;
}

/* A capture in another stream does not mind. */
static bool record(CUevent *event, CUstream stream)
{
	return (*event || create(event)) && REAL(cuEventRecord)(*event, stream) == CUDA_SUCCESS;
}

bool busy_before(struct launch *launch, CUstream stream) { return record(&launch->begin, stream); }

static bool is_done(CUevent event)
{
	int mode = relax();
	bool done = REAL(cuEventQuery)(event) == CUDA_SUCCESS;
	restore(mode);
	return done;
}

/* The phase is set here alone: from then on the launch's place may be another one's. */
void busy_after(struct launch *launch, CUstream stream, bool timed, bool launched, int64_t host_ns)
{
	int phase = launched ? LAUNCH_UNTIMED : LAUNCH_FAILED;
	if (launched && timed) {
		/* If it is not done, the stream had a copy or the like to do, and the launch took no time between the events. */
		if (host_ns > 0 && is_done(launch->begin))
			launch->host_ns = host_ns;
		if (record(&launch->end, stream))
			phase = LAUNCH_RECORDED;
	}
	atomic_store(&launch->phase, phase);
}

static bool time_of(const struct busy *b, CUevent event, int64_t *ns)
{
	float ms;
	if (REAL(cuEventElapsedTime)(&ms, b->anchor, event) != CUDA_SUCCESS)
		return false;
	*ns = b->anchor_ns + (int64_t)((double)ms * 1e6);
	return true;
}

/* The event becomes the one that time is told from; the launch gets the old one for its next use. */
static void move_anchor(struct busy *b, CUevent *event, int64_t ns)
{
	CUevent old = b->anchor;
	b->anchor = *event;
	b->anchor_ns = ns;
	*event = old;
}

/* The time on the host that a measured stretch has in it. A launch that returns only when its kernel is done (a debugger
 * may see to that) looks like one that loads its function for long, which no function's second launch does. */
static int64_t host_time(const struct busy *b, const struct launch *launch)
{
	return find(b, launch->work.function, 0) && launch->host_ns > BUSY_HOST_NS ? BUSY_HOST_NS : launch->host_ns;
}

/* By the host's clock; not later than now. The GPU's clock is some constant behind: the least distance that was seen, as far
 * as the clocks may have drifted since. */
static int64_t host_clock(struct busy *b, int64_t to, int64_t now)
{
	int64_t offset = now - to, known = b->offset_ns + (now - b->offset_at) / CLOCK_DRIFT;
	b->offset_ns = b->offset_at == 0 || offset < known ? offset : known;
	b->offset_at = now;
	return to + b->offset_ns;
}

/* -1 where the driver cannot tell. */
static int64_t measure(struct busy *b, struct launch *launch, int64_t now)
{
	int64_t from, to, fresh, slack;
	if (!b->anchor)
		move_anchor(b, &launch->begin, 0);
	if (!launch->begin)
		from = b->anchor_ns;	/* this one's begin has just become the anchor */
	else if (!time_of(b, launch->begin, &from))
		return -1;
	if (!time_of(b, launch->end, &to))
		return -1;
	/* An edge ends what was launched before it, and itself. */
	slack = launch->edge ? to - launch->estimate_ns : from;
	slack -= b->covered.to + launch->untimed_ns;
	if (slack > 0)
		b->slack_ns += slack;
	else
		b->excess_ns -= slack;
	fresh = busy_cover(&b->covered, from + host_time(b, launch), to);
	if (launch->edge)	/* what was launched before it has gone by */
		b->covered = (struct covered){ to, to, to };
	b->done_ns = host_clock(b, to, now);
	if (to - b->anchor_ns > ANCHOR_AGE_NS)
		move_anchor(b, &launch->end, to);
	return fresh;
}

/* What it took, but for what is due to others. */
static int64_t own_time(const struct busy *b, const struct launch *launch, struct others now, int64_t ns)
{
	bool known;
	int64_t usual = busy_estimate(b, &launch->work, &known), more = ns - usual;
	uint64_t held = now.held_ns > launch->others.held_ns ? now.held_ns - launch->others.held_ns : 0;
	if (more <= 0)
		return ns;
	if (known && now.passes != launch->others.passes)
		return usual;
	return ns - ((uint64_t)more < held ? more : (int64_t)held);
}

void busy_end_asking(struct asking *asking)
{
	if (asking->begun)
		restore(asking->mode);
	asking->begun = false;
}

static void begin_asking(struct asking *asking)
{
	if (!asking->begun)
		asking->mode = relax();
	asking->begun = true;
}

static bool harvest_timed(struct busy *b, struct launch *launch, struct others others, int64_t now, int64_t *busy_ns)
{
	CUresult result = REAL(cuEventQuery)(launch->end);
	if (result == CUDA_ERROR_NOT_READY) {
		int64_t expected = b->done_ns + launch->estimate_ns - now, half = launch->estimate_ns / 2;
		int64_t later = half < ASK_LEAST_NS ? ASK_LEAST_NS : half < ASK_MOST_NS ? half : ASK_MOST_NS;
		/* Most launches find work on its way: they need not all ask. It may have become shorter. */
		if (expected > later)
			later = expected < ASK_EXPECTED_NS ? expected : ASK_EXPECTED_NS;
		b->ask_ns = now + later;
	} else {
		b->done_ns = now;
		int64_t measured = result == CUDA_SUCCESS ? measure(b, launch, now) : -1;
		bool known = find(b, launch->work.function, launch->work.shape) != NULL;
		if (measured >= 0 && !(launch->edge && known)) {
			*busy_ns = own_time(b, launch, others, measured);
			/* Of a first launch it is not known how much of it was waiting. Too much is put right by the next
			 * one that is shorter; too little would stay, as what takes longer beside others is taken for the usual. */
			*busy_ns += learn(b, launch, known ? *busy_ns : measured);
		}
	}
	return result != CUDA_ERROR_NOT_READY;
}

static bool harvest_one(struct busy *b, struct launch *launch, struct others others, struct asking *asking, int64_t *busy_ns)
{
	int phase = atomic_load(&launch->phase);
	int64_t now = asking->now_ns;
	*busy_ns = phase == LAUNCH_FAILED ? 0 : launch->estimate_ns;
	if (phase == LAUNCH_RECORDED) {
		if (now < b->ask_ns)
			return false;
		begin_asking(asking);
		return harvest_timed(b, launch, others, now, busy_ns);
	}
	if (phase == LAUNCH_UNTIMED) {
		if (now < b->done_ns + launch->estimate_ns)
			return false;
		b->done_ns += launch->estimate_ns;
	}
	return phase != LAUNCH_BEGUN;
}

bool busy_harvest(struct busy *b, struct others others, struct asking *asking, struct launch *done, int64_t *busy_ns)
{
	if (busy_is_idle(b))
		return false;
	struct launch *launch = &b->ring[b->done % BUSY_RING];
	if (!harvest_one(b, launch, others, asking, busy_ns))
		return false;
	b->in_flight_ns -= launch->estimate_ns;
	b->untimed -= !launch->timed;
	b->learners -= launch->learns;
	b->done++;
	done->asked_ns = launch->asked_ns;
	done->charged_ns = launch->charged_ns;
	done->charged = launch->charged;
	return true;
}
