/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Event sets. Nothing in the simulation raises an event yet: waiting ends with its time.
 */
#include <stdlib.h>
#include <time.h>

#include "call.h"

struct event_set {
	unsigned long long types;
};

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
	CALL(nvmlEventSetCreate);
	if (!set)
		return NVML_ERROR_INVALID_ARGUMENT;
	*set = calloc(1, sizeof **set);
	return *set ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
	CALL(nvmlEventSetFree);
	free(set);
	return NVML_SUCCESS;
}

/* nvml.h: ECC errors, performance state, Xid, clock. */
enum { SUPPORTED_EVENTS = 0x1f };

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
	QUERY(nvmlDeviceGetSupportedEventTypes);
	if (!types)
		return NVML_ERROR_INVALID_ARGUMENT;
	*types = on.gi ? 0 : SUPPORTED_EVENTS;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
	QUERY(nvmlDeviceRegisterEvents);
	if (!set)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (types & ~(unsigned long long)SUPPORTED_EVENTS)
		return NVML_ERROR_NOT_SUPPORTED;
	set->types |= types;
	return NVML_SUCCESS;
}

static nvmlReturn_t wait_for_event(function_t function, nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout_ms)
{
	CALL_AS(function);
	if (!set || !data)
		return NVML_ERROR_INVALID_ARGUMENT;
	struct timespec time = { timeout_ms / 1000, timeout_ms % 1000 * 1000000L };
	clock_nanosleep(CLOCK_MONOTONIC, 0, &time, NULL);
	return NVML_ERROR_TIMEOUT;
}

nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout_ms)
{
	return wait_for_event(F_nvmlEventSetWait, set, data, timeout_ms);
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout_ms)
{
	return wait_for_event(F_nvmlEventSetWait_v2, set, data, timeout_ms);
}
