/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Measuring. An event is recorded just before each launch and one just after it. What lies between is
 * time that the GPU worked for this process, if nobody else had it: gaps on the host and copies lie
 * outside. The first event is done at once where the GPU has nothing else to do, and the launch that follows
 * may take long on the host, as one that loads its function does: that time is taken off. Launches in several streams overlap, so the stretches are put together before they are
 * summed.
 *
 * All calls of events are made in the relaxed capture mode: a capture that goes on in another stream
 * must not notice them.
 */
#include "busy.h"
#include "internal.h"

/* The driver tells time as float milliseconds: after four seconds the step is a quarter microsecond. */
#define ANCHOR_AGE_NS INT64_C(4000000000)

/* --- estimates --- */

static unsigned place_of(const void *function)
{
	return (uint32_t)((uintptr_t)function >> 4) * UINT32_C(2654435761) >> 24;	/* 8 bits: BUSY_ESTIMATES */
}

int64_t busy_estimate(const struct busy *b, const void *function, bool *known)
{
	unsigned i = place_of(function);
	*known = b->estimates[i].function == function;
	return *known ? b->estimates[i].ns : BUSY_UNKNOWN_NS;
}

static void learn(struct busy *b, const void *function, int64_t ns)
{
	unsigned i = place_of(function);
	bool known = b->estimates[i].function == function;
	/* A first launch may be an odd one: the second replaces what was learned of it. */
	if (known && !b->estimates[i].once)
		ns = b->estimates[i].ns + (ns - b->estimates[i].ns) / 4;
	b->estimates[i].once = !known;
	b->estimates[i].function = function;
	b->estimates[i].ns = ns;
}

/* --- events --- */

static int relax(void)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	REAL(cuThreadExchangeStreamCaptureMode)(&mode);
	return mode;
}

static void restore(int mode) { REAL(cuThreadExchangeStreamCaptureMode)(&mode); }

struct launch *busy_reserve(struct busy *b, const void *function, struct others others, int64_t now)
{
	struct launch *launch = &b->ring[b->put % BUSY_RING];
	bool known;
	launch->function = function;
	launch->asked_ns = now;
	launch->estimate_ns = busy_estimate(b, function, &known);
	launch->first = busy_is_idle(b);
	launch->others = others;
	launch->host_ns = 0;
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
	bool known;
	busy_estimate(b, launch->function, &known);
	return known && launch->host_ns > BUSY_HOST_NS ? BUSY_HOST_NS : launch->host_ns;
}

/* -1 where the driver cannot tell. */
static int64_t measure(struct busy *b, struct launch *launch)
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
	if (to - b->anchor_ns > ANCHOR_AGE_NS)
		move_anchor(b, &launch->end, to);
	return fresh;
}

/* What it took, but for what is due to others. */
static int64_t own_time(const struct busy *b, const struct launch *launch, struct others now, int64_t ns)
{
	bool known;
	int64_t usual = busy_estimate(b, launch->function, &known), more = ns - usual;
	uint64_t held = now.held_ns > launch->others.held_ns ? now.held_ns - launch->others.held_ns : 0;
	if (more <= 0)
		return ns;
	if (known && now.passes != launch->others.passes)
		return usual;
	return ns - ((uint64_t)more < held ? more : (int64_t)held);
}

static bool harvest_one(struct busy *b, struct launch *launch, struct others others, int64_t *busy_ns)
{
	int phase = atomic_load(&launch->phase);
	if (phase == LAUNCH_BEGUN)
		return false;
	*busy_ns = phase == LAUNCH_FAILED ? 0 : launch->estimate_ns;
	if (phase == LAUNCH_RECORDED) {
		CUresult result = REAL(cuEventQuery)(launch->end);
		if (result == CUDA_ERROR_NOT_READY)
			return false;
		int64_t measured = result == CUDA_SUCCESS ? measure(b, launch) : -1;
		if (measured >= 0) {
			*busy_ns = own_time(b, launch, others, measured);
			learn(b, launch->function, *busy_ns);
		}
	}
	return true;
}

bool busy_harvest(struct busy *b, struct others others, struct launch *done, int64_t *busy_ns)
{
	if (busy_is_idle(b))
		return false;
	struct launch *launch = &b->ring[b->done % BUSY_RING];
	int mode = relax();
	bool found = harvest_one(b, launch, others, busy_ns);
	restore(mode);
	if (!found)
		return false;
	b->in_flight_ns -= launch->estimate_ns;
	b->done++;
	done->asked_ns = launch->asked_ns;
	done->estimate_ns = launch->estimate_ns;
	done->charged = launch->charged;
	return true;
}
