/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 */
#include "call.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "fault.h"

static _Atomic int initializations;

/* The current call of this thread, and the signal that a fault of its GPU sends. */
static _Thread_local function_t current;
static _Thread_local int signal_on_return;

void call_set_initialized(int by)
{
	atomic_fetch_add(&initializations, by);
}

bool call_is_initialized(void)
{
	return atomic_load(&initializations) > 0;
}

call_t call_enter_uninitialized(function_t function)
{
	call_t call = { NVML_SUCCESS, false };
	current = function;
	traffic_t *traffic = state_traffic();
	if (!traffic)
		return call;
	atomic_fetch_add_explicit(&traffic->calls[function], 1, memory_order_relaxed);
	switch (fault_strikes(traffic, function, UNKNOWN, true, &call.result)) {
	case ACTION_KILL:
		state_die();
		break;
	case ACTION_KILL_INSIDE:
		state_die_inside = true;
		break;
	case ACTION_KILL_AFTER:
		call.die_on_return = true;
		break;
	case ACTION_STOP:
		/* This thread holds no lock here, so the host's other clients continue while this process is stopped. */
		raise(SIGSTOP);
		break;
	case ACTION_NONE:
	case ACTION_RESULT:
		break;
	}
	return call;
}

call_t call_enter(function_t function)
{
	if (!call_is_initialized())
		return (call_t){ NVML_ERROR_UNINITIALIZED, false };
	return call_enter_uninitialized(function);
}

nvmlReturn_t call_concerns(int gpu)
{
	nvmlReturn_t result = NVML_SUCCESS;
	traffic_t *faults = state_faults();
	switch (faults ? fault_strikes(faults, current, gpu, state_is_writable(), &result) : ACTION_NONE) {
	case ACTION_KILL:
		signal_on_return = SIGKILL;
		return NVML_ERROR_UNKNOWN;
	case ACTION_STOP:
		signal_on_return = SIGSTOP;
		return NVML_ERROR_UNKNOWN;
	case ACTION_KILL_AFTER:
		signal_on_return = SIGKILL;
		return NVML_SUCCESS;
	case ACTION_KILL_INSIDE:
		state_die_inside = true;
		return NVML_SUCCESS;
	case ACTION_NONE:
	case ACTION_RESULT:
		break;
	}
	return result;
}

void call_leave(call_t *call)
{
	if (call->die_on_return || state_die_inside)
		state_die();
	int number = signal_on_return;
	signal_on_return = 0;
	if (number == SIGKILL)
		state_die();
	if (number)
		raise(number);
}

nvmlReturn_t call_unsupported(function_t function)
{
	CALL_AS(function);
	return NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t give(unsigned *out, int64_t value)
{
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (value == UNKNOWN)
		return NVML_ERROR_NOT_SUPPORTED;
	*out = (unsigned)value;
	return NVML_SUCCESS;
}

nvmlReturn_t give_text(char *out, unsigned length, const char *text)
{
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!*text)
		return NVML_ERROR_NOT_SUPPORTED;
	if (strlen(text) >= length)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	strcpy(out, text);
	return NVML_SUCCESS;
}

nvmlReturn_t give_list(unsigned *count, unsigned found, const void *buffer)
{
	unsigned room = buffer ? *count : 0;
	*count = found;
	return room < found ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}
