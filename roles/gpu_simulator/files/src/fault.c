/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Count calls and trigger faults. There is no lock: if a process dies between two steps, only its own call is affected.
 */
#include "fault.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FUNCTION(name) #name,
static const char *const NAMES[] = {
#include "functions.h"
};
#undef FUNCTION

int function_by_name(const char *name)
{
	for (int i = 0; i < F_COUNT; i++)
		if (strcmp(NAMES[i], name) == 0)
			return i;
	return strcmp(name, "any") == 0 ? FAULT_ANY : -1;
}

const char *function_name(int function)
{
	return function == FAULT_ANY ? "any" : NAMES[function];
}

static const struct { int32_t action; const char *name; } ACTIONS[] = {
	{ ACTION_KILL, "kill" }, { ACTION_KILL_INSIDE, "kill-inside" }, { ACTION_KILL_AFTER, "kill-after" },
	{ ACTION_STOP, "stop" },
	{ 1, "UNINITIALIZED" }, { 2, "INVALID_ARGUMENT" }, { 3, "NOT_SUPPORTED" }, { 4, "NO_PERMISSION" },
	{ 5, "ALREADY_INITIALIZED" }, { 6, "NOT_FOUND" }, { 7, "INSUFFICIENT_SIZE" }, { 8, "INSUFFICIENT_POWER" },
	{ 9, "DRIVER_NOT_LOADED" }, { 10, "TIMEOUT" }, { 11, "IRQ_ISSUE" }, { 12, "LIBRARY_NOT_FOUND" },
	{ 13, "FUNCTION_NOT_FOUND" }, { 14, "CORRUPTED_INFOROM" }, { 15, "GPU_IS_LOST" }, { 16, "RESET_REQUIRED" },
	{ 17, "OPERATING_SYSTEM" }, { 18, "LIB_RM_VERSION_MISMATCH" }, { 19, "IN_USE" }, { 20, "MEMORY" }, { 21, "NO_DATA" },
	{ 22, "VGPU_ECC_NOT_SUPPORTED" }, { 23, "INSUFFICIENT_RESOURCES" }, { 24, "FREQ_NOT_SUPPORTED" },
	{ 25, "ARGUMENT_VERSION_MISMATCH" }, { 26, "DEPRECATED" }, { 27, "NOT_READY" }, { 28, "GPU_NOT_FOUND" },
	{ 29, "INVALID_STATE" }, { 30, "RESET_TYPE_NOT_SUPPORTED" }, { 999, "UNKNOWN" },
};

bool fault_action_by_name(const char *name, int32_t *action)
{
	static const char prefix[] = "NVML_ERROR_";
	if (strncmp(name, prefix, sizeof prefix - 1) == 0)
		name += sizeof prefix - 1;
	for (size_t i = 0; i < sizeof ACTIONS / sizeof *ACTIONS; i++) {
		*action = ACTIONS[i].action;
		if (strcmp(ACTIONS[i].name, name) == 0)
			return true;
	}
	char *end;
	long number = strtol(name, &end, 10);
	*action = number;
	return end != name && !*end && number > 0 && number <= 999;
}

const char *fault_action_name(int32_t action, char words[32])
{
	snprintf(words, 32, "%d", action);
	for (size_t i = 0; i < sizeof ACTIONS / sizeof *ACTIONS; i++)
		if (ACTIONS[i].action == action)
			snprintf(words, 32, "%s", ACTIONS[i].name);
	return words;
}

/* A lasting fault whose function name has no version (nvmlDeviceGetCount) applies to all versions of the function,
 * because clients choose one of them. The name of a version ends in _v and a number, or in V if the caller passes the
 * version number in the argument's structure. */
static bool is_version_of(const char *plain, const char *name)
{
	size_t length = strlen(plain);
	if (strncmp(plain, name, length) != 0)
		return false;
	const char *rest = name + length;
	return !*rest || strcmp(rest, "V") == 0 || (strncmp(rest, "_v", 2) == 0 && rest[2] >= '0' && rest[2] <= '9');
}

static bool concerns(const fault_t *fault, int32_t number, function_t function, int gpu)
{
	if (number <= 0 || fault->gpu != gpu)
		return false;
	if (number == FAULT_ANY + 1 || number == (int32_t)function + 1)
		return true;
	return fault->lasts && is_version_of(NAMES[number - 1], NAMES[function]);
}

action_t fault_strikes(traffic_t *traffic, function_t function, int gpu, bool writable, nvmlReturn_t *result)
{
	if (atomic_load_explicit(&traffic->armed, memory_order_relaxed) == 0)
		return ACTION_NONE;
	for (int i = 0; i < MAX_FAULTS; i++) {
		fault_t *fault = &traffic->faults[i];
		if (!concerns(fault, atomic_load(&fault->function), function, gpu))
			continue;
		/* Exactly one caller sees the counter change from 1 to 0. From then on, a lasting fault applies to all
		 * calls. */
		int32_t left = atomic_load(&fault->remaining);
		if (writable && !(fault->lasts && left <= 0))
			left = atomic_fetch_sub(&fault->remaining, 1);
		if (fault->lasts ? left > 1 : !writable || left != 1)
			continue;
		int32_t action = fault->action;
		if (!fault->lasts)
			atomic_store(&fault->function, 0);
		if (action < ACTION_NONE)
			return action;
		*result = action;
		return ACTION_RESULT;
	}
	return ACTION_NONE;
}

bool fault_arm(traffic_t *traffic, int function, int gpu, int32_t nth, bool lasts, int32_t action)
{
	for (int i = 0; i < MAX_FAULTS; i++) {
		fault_t *fault = &traffic->faults[i];
		int32_t unused = 0;
		/* The value -1 reserves the entry while its other words are written. */
		if (!atomic_compare_exchange_strong(&fault->function, &unused, -1))
			continue;
		fault->action = action;
		fault->gpu = gpu;
		fault->lasts = lasts;
		atomic_store(&fault->remaining, nth);
		atomic_store(&fault->function, (int32_t)function + 1);
		atomic_store(&traffic->armed, 1);
		return true;
	}
	return false;
}

void fault_clear(traffic_t *traffic)
{
	atomic_store(&traffic->armed, 0);
	for (int i = 0; i < MAX_FAULTS; i++)
		atomic_store(&traffic->faults[i].function, 0);
}
