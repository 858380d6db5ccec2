/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Event sets. The events are stored in the host's state, and a set stores only its read position. So every set of every
 * process receives each event, and a dead client leaves nothing behind. Only Xid errors are raised. Other types of
 * events may be registered, as on hardware.
 */
#include "events.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "call.h"

/* A waiting client's poll interval. Each poll takes two system calls. */
enum { LOOK_EVERY_MS = 25 };

static const uint64_t NEVER = UINT64_MAX;

/* Several threads may wait for one set. Only one of them gets each event. */
struct event_set {
	_Atomic uint64_t since[MAX_GPUS];	/* for each GPU, the first event number that its registration includes */
	_Atomic uint64_t next;			/* number of the first unread event */
};

void events_raise(host_t *host, event_t event)
{
	host->events[host->event_count++ % MAX_EVENTS] = event;
}

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
	CALL(nvmlEventSetCreate);
	if (!set)
		return NVML_ERROR_INVALID_ARGUMENT;
	*set = calloc(1, sizeof **set);
	for (int i = 0; *set && i < MAX_GPUS; i++)
		atomic_store(&(*set)->since[i], NEVER);
	return *set ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
	CALL(nvmlEventSetFree);
	free(set);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
	QUERY(nvmlDeviceGetSupportedEventTypes);
	if (!types)
		return NVML_ERROR_INVALID_ARGUMENT;
	*types = on.gi ? 0 : EVENTS_SUPPORTED;
	return NVML_SUCCESS;
}

/* The registration includes only later events (nvml.h). MIG devices have no events. A GPU's event contains the
 * instance. */
nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
	QUERY(nvmlDeviceRegisterEvents);
	if (!set)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (types & ~(unsigned long long)EVENTS_SUPPORTED || (on.gi && types))
		return NVML_ERROR_NOT_SUPPORTED;
	uint64_t unregistered = NEVER;
	if (types & EVENT_XID)
		atomic_compare_exchange_strong(&set->since[on.gpu_index], &unregistered, host->event_count);
	return NVML_SUCCESS;
}

/* Only privileged clients receive events of an instance (nvml.h, nvmlEventSetWait_v2: "only if the caller has
 * appropriate privileges"). All clients receive events of the whole GPU. */
static bool is_for(const struct event_set *set, uint64_t number, const event_t *event, bool privileged)
{
	return event->gpu >= 0 && number >= atomic_load(&set->since[event->gpu]) && (privileged || event->gi == UNKNOWN);
}

/* Takes the set's oldest unread event. */
static bool take(struct event_set *set, const host_t *host, bool privileged, event_t *event)
{
	uint64_t from = atomic_load(&set->next), end = host->event_count;
	for (;;) {
		uint64_t n = end > MAX_EVENTS && from < end - MAX_EVENTS ? end - MAX_EVENTS : from;
		while (n < end && !is_for(set, n, &host->events[n % MAX_EVENTS], privileged))
			n++;
		if (n >= end)
			return false;
		/* If another thread has read the event in the meantime, this call sets `from` to that thread's
		 * position. */
		if (atomic_compare_exchange_strong(&set->next, &from, n + 1)) {
			*event = host->events[n % MAX_EVENTS];
			return true;
		}
	}
}

/* nvmlEventSetWait_v2 in nvml.h: GPU_IS_LOST "if a GPU has fallen off the bus". The client gets events in the queue
 * first. */
static bool watches_lost(const struct event_set *set, const host_t *host)
{
	for (int i = 0; i < host->gpu_count; i++)
		if (host->gpus[i].lost && atomic_load(&set->since[i]) != NEVER)
			return true;
	return false;
}

static nvmlReturn_t look(struct event_set *set, nvmlEventData_t *data)
{
	bool privileged = geteuid() == 0;
	event_t event;
	host_t *host READING = state_read();
	if (!host)
		return NVML_ERROR_UNKNOWN;
	if (!take(set, host, privileged, &event))
		return watches_lost(set, host) ? NVML_ERROR_GPU_IS_LOST : NVML_ERROR_TIMEOUT;
	*data = (nvmlEventData_t){ handle_of_gpu(event.gpu), event.type, event.data,
		event.gi == UNKNOWN ? NO_INSTANCE : (unsigned)event.gi, event.ci == UNKNOWN ? NO_INSTANCE : (unsigned)event.ci };
	return NVML_SUCCESS;
}

static int64_t now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

static nvmlReturn_t wait_for_event(function_t function, nvmlEventSet_t set, void *data, size_t length, unsigned timeout_ms)
{
	CALL_AS(function);
	if (!set || !data)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (int64_t deadline = now_ms() + timeout_ms;;) {
		nvmlEventData_t event;
		nvmlReturn_t result = look(set, &event);
		if (result == NVML_SUCCESS)
			memcpy(data, &event, length);
		int64_t left = deadline - now_ms();
		if (result != NVML_ERROR_TIMEOUT || left <= 0)
			return result;
		struct timespec pause = { 0, (left < LOOK_EVERY_MS ? left : LOOK_EVERY_MS) * 1000000 };
		/* A signal ends the wait, as documented in nvml.h. */
		if (nanosleep(&pause, NULL) != 0)
			return NVML_ERROR_TIMEOUT;
	}
}

/* For programs built before MIG, the structure has no fields for instances. */
nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, void *data, unsigned timeout_ms)
{
	return wait_for_event(F_nvmlEventSetWait, set, data, offsetof(nvmlEventData_t, gpu_instance), timeout_ms);
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout_ms)
{
	return wait_for_event(F_nvmlEventSetWait_v2, set, data, sizeof *data, timeout_ms);
}
