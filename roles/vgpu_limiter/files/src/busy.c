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
 * some 500 us of work of it; in between it is taken to need that length, and to be done when that time has gone by. The
 * distance between samples varies at random, so that on average each launch is as likely to be timed as any other.
 * Where several streams have work, one launch's time cannot be told from what the other streams' launches took meanwhile.
 * There a row of launches is timed: the first ends what went before, and the others share what comes after.
 * In a stream with dependent launches (programmatic dependent launch) only kernels of unknown length are timed: an event
 * between two such launches would keep the second from starting early.
 *
 * All calls of events are made in the relaxed capture mode: a capture that goes on in another stream
 * must not notice them.
 */
#include "busy.h"
#include "internal.h"

/* The driver tells time as float milliseconds: after four seconds the step is a quarter microsecond. */
#define ANCHOR_AGE_NS INT64_C(4000000000)
#define CLOCK_DRIFT 4096	/* one clock gains less than this part of the time on the other */
#define ODD_TIMES 4	/* one that took so many times as long as usual says nothing of the next, if that is as usual */
#define ASK_LEAST_NS INT64_C(20000)
#define ASK_MOST_NS INT64_C(50000)	/* how long a timed launch that was not done is not asked for */

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

static void learn_shape(struct busy *b, const void *function, uint64_t shape, int64_t ns)
{
	struct estimate *e = find(b, function, shape);
	bool known = e != NULL;
	/* A first launch may be an odd one: the second replaces what was learned of it. */
	if (known && !e->once) {
		/* So may any other, as one that another process's work came in between: many are to be taken for alike. */
		if (ns > e->ns * ODD_TIMES && !e->odd) {
			e->odd = true;
			e->left_ns = 0;
			return;
		}
		e->odd = ns > e->ns * ODD_TIMES;
		ns = e->ns + (ns - e->ns) / 4;
	}
	if (!known)
		e = &b->estimates[place_of(function, shape)];
	*e = (struct estimate){ function, shape, ns, known ? e->left_ns : BUSY_SAMPLE_NS, !known, known && e->odd };
}

static void learn(struct busy *b, const struct work *work, int64_t ns)
{
	learn_shape(b, work->function, work->shape, ns);
	if (work->shape)
		learn_shape(b, work->function, 0, ns);
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

static bool its_turn(struct busy *b, struct estimate *e)
{
	if (b->window > 0) {
		b->window--;
		return true;
	}
	e->left_ns -= e->ns;
	if (e->left_ns > 0)
		return false;
	b->noise = b->noise * UINT32_C(1664525) + UINT32_C(1013904223);
	e->left_ns = BUSY_SAMPLE_NS / 2 + ((BUSY_SAMPLE_NS * (b->noise >> 16)) >> 16);
	return true;
}

static void choose(struct busy *b, struct launch *launch, bool all)
{
	struct estimate *e = find(b, launch->work.function, launch->work.shape);
	bool unknown = !e || e->once;
	if (launch->work.dependent && !has_dependent(b, launch->stream))
		b->dependent[b->dependents++ % BUSY_DEPENDENT] = launch->stream;
	launch->edge = b->untimed > 0 && (b->untimed_mixed || b->untimed_stream != launch->stream || launch->stream == CU_STREAM_PER_THREAD);	/* each thread's own */
	bool dependent = has_dependent(b, launch->stream);
	launch->learns = unknown && (!dependent || b->learners < BUSY_LEARNERS);
	launch->timed = launch->learns || all || (!unknown && !dependent && its_turn(b, e));
	b->learners += launch->learns;
	if (!launch->timed) {
		b->untimed_mixed = launch->edge || (b->untimed > 0 && b->untimed_mixed);
		b->untimed_stream = launch->stream;
		b->untimed++;
		return;
	}
	if (launch->edge && b->window == 0)
		b->window = BUSY_WINDOW;
	else
		launch->edge = false;
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
	launch->estimate_ns = busy_estimate(b, work, &known);
	launch->first = busy_is_idle(b);
	launch->others = others;
	launch->host_ns = 0;
	if (launch->first)
		b->done_ns = now;
	choose(b, launch, all);
	b->in_flight_ns += launch->estimate_ns;
	b->put++;
	atomic_store(&launch->phase, LAUNCH_BEGUN);
	return launch;
}

static bool record(CUevent *event, CUstream stream)
{
	if (!*event && REAL(cuEventCreate)(event, CU_EVENT_DEFAULT) != CUDA_SUCCESS) {
		*event = NULL;
		return false;
	}
	return REAL(cuEventRecord)(*event, stream) == CUDA_SUCCESS;
}

bool busy_before(struct launch *launch, CUstream stream)
{
	int mode = relax();
	bool recorded = record(&launch->begin, stream);
	restore(mode);
	return recorded;
}

/* The phase is set here alone: from then on the launch's place may be another one's. */
void busy_after(struct launch *launch, CUstream stream, bool timed, bool launched, int64_t host_ns)
{
	int phase = launched ? LAUNCH_UNTIMED : LAUNCH_FAILED;
	if (launched && timed) {
		int mode = relax();
		/* Before, the stream had a copy or the like to do, and the launch took no time between the events. */
		if (host_ns > 0 && REAL(cuEventQuery)(launch->begin) == CUDA_SUCCESS)
			launch->host_ns = host_ns;
		if (record(&launch->end, stream))
			phase = LAUNCH_RECORDED;
		restore(mode);
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
	int64_t from, to, fresh;
	if (!b->anchor)
		move_anchor(b, &launch->begin, 0);
	if (!launch->begin)
		from = b->anchor_ns;	/* this one's begin has just become the anchor */
	else if (!time_of(b, launch->begin, &from))
		return -1;
	if (!time_of(b, launch->end, &to))
		return -1;
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

static bool harvest_timed(struct busy *b, struct launch *launch, struct others others, int64_t now, int64_t *busy_ns)
{
	int mode = relax();
	CUresult result = REAL(cuEventQuery)(launch->end);
	if (result == CUDA_ERROR_NOT_READY) {
		int64_t later = launch->estimate_ns / 4;
		/* Most launches find work on its way: they need not all ask. */
		b->ask_ns = now + (later < ASK_LEAST_NS ? ASK_LEAST_NS : later < ASK_MOST_NS ? later : ASK_MOST_NS);
	} else {
		b->done_ns = now;
		int64_t measured = result == CUDA_SUCCESS ? measure(b, launch, now) : -1;
		bool known = find(b, launch->work.function, launch->work.shape) != NULL;
		if (measured >= 0 && !(launch->edge && known)) {
			*busy_ns = own_time(b, launch, others, measured);
			learn(b, &launch->work, *busy_ns);
		}
	}
	restore(mode);
	return result != CUDA_ERROR_NOT_READY;
}

static bool harvest_one(struct busy *b, struct launch *launch, struct others others, int64_t now, int64_t *busy_ns)
{
	int phase = atomic_load(&launch->phase);
	*busy_ns = phase == LAUNCH_FAILED ? 0 : launch->estimate_ns;
	if (phase == LAUNCH_RECORDED)
		return now >= b->ask_ns && harvest_timed(b, launch, others, now, busy_ns);
	if (phase == LAUNCH_UNTIMED) {
		if (now < b->done_ns + launch->estimate_ns)
			return false;
		b->done_ns += launch->estimate_ns;
	}
	return phase != LAUNCH_BEGUN;
}

bool busy_harvest(struct busy *b, struct others others, int64_t now, struct launch *done, int64_t *busy_ns)
{
	if (busy_is_idle(b))
		return false;
	struct launch *launch = &b->ring[b->done % BUSY_RING];
	if (!harvest_one(b, launch, others, now, busy_ns))
		return false;
	b->in_flight_ns -= launch->estimate_ns;
	b->untimed -= !launch->timed;
	b->learners -= launch->learns;
	b->done++;
	done->asked_ns = launch->asked_ns;
	done->estimate_ns = launch->estimate_ns;
	done->charged = launch->charged;
	return true;
}
