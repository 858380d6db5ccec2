/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Measure GPU time with one event directly before a launch and one directly after it. If no other process had the GPU,
 * the time between the events is this process's GPU time. Time for copies and gaps caused by the host are not included.
 * If the GPU is idle, the first event completes at once. The interval then contains the time that the launch takes on
 * the host, for example to load its function, so this time is subtracted. Launches in several streams overlap, so their
 * intervals are merged before they are summed.
 *
 * Events are created and queried in the relaxed capture mode, because a capture in another stream must not be affected.
 * Recording an event in another stream does not affect the capture.
 */
#include "throttle/busy.h"

#include "driver/reals.h"
#include "driver/streams.h"
#include "throttle/lengths.h"
#include "throttle/sampling.h"
#include "throttle/times.h"

/* The driver reports time as a float in milliseconds, whose resolution is a quarter of a microsecond after four
 * seconds. */
#define ANCHOR_AGE_NS INT64_C(4000000000)
#define CLOCK_DRIFT 4096	/* maximum relative drift between the clocks of host and GPU: 1 / CLOCK_DRIFT */
#define BUSY_HOST_NS INT64_C(50000)	/* maximum host time of a launch, except for the first launch of a function */
#define AHEAD_MOST 32	/* if more launches than this are in flight, they are not checked one by one */
#define ASK_LEAST_NS INT64_C(50000)
#define ASK_MOST_NS INT64_C(100000)	/* poll interval for an unfinished timed launch that should be done */
#define ASK_EXPECTED_NS INT64_C(500000)	/* poll interval for an unfinished timed launch that is not due yet */

/* Estimate the remaining time of work in flight. Each launch begins after it was submitted and after the previous
 * launch. Only the first of many launches in flight can have begun late, for example because other GPUs wait for this
 * one. */
static int64_t ahead(const struct busy *b, int64_t now)
{
	uint32_t from = b->put - b->done > AHEAD_MOST ? b->put - 1 : b->done;
	int64_t end = b->done_ns;
	if (from != b->done)
		end += b->in_flight_ns - b->ring[from % BUSY_RING].estimate_ns;
	for (uint32_t i = from; i != b->put; i++) {
		const struct launch *launch = &b->ring[i % BUSY_RING];
		if (atomic_load(&launch->phase) != LAUNCH_BEGUN)
			end = later(end, launch->returned_ns);
		end += launch->estimate_ns;
	}
	return within(end - now, 0, b->in_flight_ns);
}

struct launch *busy_reserve(struct busy *b, const struct work *work, CUstream stream, struct others others, bool all, int64_t now)
{
	struct launch *launch = &b->ring[b->put % BUSY_RING];
	bool known;
	launch->work = *work;
	launch->stream = stream;
	launch->asked_ns = now;
	launch->estimate_ns = launch->charged_ns = busy_estimate(b, work, &known);
	launch->others = others;
	launch->together = all;
	launch->ahead_ns = ahead(b, now);
	launch->first = launch->ahead_ns < BUSY_HOST_NS;
	launch->host_ns = launch->returned_ns = 0;
	if (busy_is_idle(b))
		b->done_ns = now;
	sampling_choose(b, launch, all);
	b->in_flight_ns += launch->estimate_ns;
	b->put++;
	atomic_store(&launch->phase, LAUNCH_BEGUN);
	return launch;
}

static bool create(CUevent *event)
{
	int mode = relax_capture();
	bool created = REAL(cuEventCreate)(event, CU_EVENT_DEFAULT) == CUDA_SUCCESS;
	restore_capture(mode);
	if (!created)
		*event = NULL;
	return created;
}

/* Record an event. Captures in other streams are not affected. */
static bool record(CUevent *event, CUstream stream)
{
	return (*event || create(event)) && REAL(cuEventRecord)(*event, stream) == CUDA_SUCCESS;
}

bool busy_before(struct launch *launch, CUstream stream) { return record(&launch->begin, stream); }

static bool is_done(CUevent event)
{
	int mode = relax_capture();
	bool done = REAL(cuEventQuery)(event) == CUDA_SUCCESS;
	restore_capture(mode);
	return done;
}

/* Complete the launch's entry. Only this thread sets the phase. Afterwards, the entry may be reused. */
void busy_after(struct launch *launch, CUstream stream, bool timed, bool launched, int64_t host_ns)
{
	int phase = launched ? LAUNCH_UNTIMED : LAUNCH_FAILED;
	if (launched && timed) {
		/* An unfinished `begin` means that the stream was busy with a copy or similar work, and that the host
		 * time is not between the events. */
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

/* Use the launch's event as the reference for later times. The launch gets the event that was the reference. */
static void move_anchor(struct busy *b, CUevent *event, int64_t ns)
{
	CUevent old = b->anchor;
	b->anchor = *event;
	b->anchor_ns = ns;
	*event = old;
}

/* Return the host time within a measured interval and after the end of earlier work. A launch that returns only after
 * its kernel has ended (for example in a debugger) looks like a slow first load of the function. Later launches of a
 * function never load it. */
static int64_t host_time(const struct busy *b, const struct launch *launch)
{
	int64_t ns = later(launch->host_ns - launch->ahead_ns, 0);
	return length_find(b, launch->work.function, 0) && ns > BUSY_HOST_NS ? BUSY_HOST_NS : ns;
}

/* Convert a GPU time to the host's clock, to a time not later than now. The GPU's clock lags by a constant. Use the
 * smallest lag so far, plus the possible drift since then. */
static int64_t host_clock(struct busy *b, int64_t to, int64_t now)
{
	int64_t offset = now - to, known = b->offset_ns + (now - b->offset_at) / CLOCK_DRIFT;
	b->offset_ns = b->offset_at == 0 || offset < known ? offset : known;
	b->offset_at = now;
	return to + b->offset_ns;
}

/* Return the measured time, or -1 if the driver cannot measure it. */
static int64_t measure(struct busy *b, struct launch *launch, int64_t now)
{
	int64_t from, to, fresh, slack;
	if (!b->anchor)
		move_anchor(b, &launch->begin, 0);
	if (!launch->begin)
		from = b->anchor_ns;	/* the launch's begin event is now the reference */
	else if (!time_of(b, launch->begin, &from))
		return -1;
	if (!time_of(b, launch->end, &to))
		return -1;
	/* An edge launch marks the end of all earlier launches and of itself. */
	slack = launch->edge ? to - launch->estimate_ns : from;
	slack -= b->covered.to + launch->untimed_ns;
	if (slack > 0)
		b->slack_ns += slack;
	else
		b->excess_ns -= slack;
	fresh = busy_cover(&b->covered, from + host_time(b, launch), to);
	if (launch->edge)	/* all earlier launches have finished */
		b->covered = (struct covered){ to, to, to };
	b->done_ns = host_clock(b, to, now);
	if (to - b->anchor_ns > ANCHOR_AGE_NS)
		move_anchor(b, &launch->end, to);
	return fresh;
}

/* Return the launch's own time, without the part that was charged to other launches. */
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
		restore_capture(asking->mode);
	asking->begun = false;
}

static void begin_asking(struct asking *asking)
{
	if (!asking->begun)
		asking->mode = relax_capture();
	asking->begun = true;
}

static bool harvest_timed(struct busy *b, struct launch *launch, struct others others, int64_t now, int64_t *busy_ns)
{
	CUresult result = REAL(cuEventQuery)(launch->end);
	if (result == CUDA_ERROR_NOT_READY) {
		int64_t expected = b->done_ns + launch->estimate_ns - now, half = launch->estimate_ns / 2;
		int64_t later = half < ASK_LEAST_NS ? ASK_LEAST_NS : half < ASK_MOST_NS ? half : ASK_MOST_NS;
		/* Most launches find work in flight, so not every launch has to query the driver. The estimate may have
		 * decreased. */
		if (expected > later)
			later = expected < ASK_EXPECTED_NS ? expected : ASK_EXPECTED_NS;
		b->ask_ns = now + later;
	} else {
		b->done_ns = now;
		int64_t measured = result == CUDA_SUCCESS ? measure(b, launch, now) : -1;
		bool known = length_find(b, launch->work.function, launch->work.shape) != NULL;
		if (measured >= 0 && !(launch->edge && known)) {
			*busy_ns = own_time(b, launch, others, measured);
			/* How long a first launch waited is unknown. If its estimate is too high, the next shorter
			 * launch corrects it. An estimate that is too low would persist, because longer times are
			 * attributed to other work. */
			*busy_ns += length_learn(b, launch, known ? *busy_ns : measured);
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
		int64_t end = later(b->done_ns, launch->returned_ns) + launch->estimate_ns;
		if (now < end)
			return false;
		b->done_ns = end;
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
