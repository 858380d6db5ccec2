/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * What every exported NVML function has in common: it is counted, may be struck by a fault, needs
 * an initialised library, and resolves its handle in one consistent state.
 */
#ifndef CALL_H
#define CALL_H

#include <unistd.h>

#include "handle.h"
#include "state.h"

typedef struct {
	nvmlReturn_t result;
	bool die_on_return;
} call_t;

/* Counts the call and lets a due fault strike. call_enter also asks for an initialised library. */
call_t call_enter(function_t function);
call_t call_enter_uninitialized(function_t function);
void call_leave(call_t *call);

/* The call is about this GPU: lets a fault strike that was armed for it. Only between state_read or state_begin and their
 * end. What ends or stops the process does so as the call is left, when no lock is held. */
nvmlReturn_t call_concerns(int gpu);

/* Body of the functions that this library does not implement. */
nvmlReturn_t call_unsupported(function_t function);

/* nvmlInit and nvmlShutdown count. The count is the process's; it reaches 0 again or not at all. */
void call_set_initialized(int by);
bool call_is_initialized(void);

/* Opens a function's body. Variables are released in reverse order: the state before the call. */
#define CALL_AS(function) \
	call_t call __attribute__((cleanup(call_leave))) = call_enter(function); \
	if (call.result != NVML_SUCCESS) \
		return call.result
#define CALL(name) CALL_AS(F_##name)

/* A question about `device`: a GPU or a MIG device in `on`. */
#define QUERY_AS(function) \
	CALL_AS(function); \
	host_t *host READING = state_read(); \
	target_t on; \
	if ((call.result = handle_device(host, device, &on)) != NVML_SUCCESS) \
		return call.result
#define QUERY(name) QUERY_AS(F_##name)

/* The same where the answer belongs to the GPU alone and a MIG device has none. */
#define QUERY_GPU_AS(function) \
	QUERY_AS(function); \
	if (on.gi) \
		return NVML_ERROR_NOT_SUPPORTED
#define QUERY_GPU(name) QUERY_GPU_AS(F_##name)

/* What only root may do and see. Of the questions these are those that nvml.h (release 12.4) marks with
 * "Requires privileged user": placements, capacities and instances; not the profiles, and not an
 * instance's own information. */
#define ROOT_ONLY \
	if (geteuid() != 0) \
		return NVML_ERROR_NO_PERMISSION

/* What a GPU in MIG mode answers for all its instances together, "only if the caller has appropriate
 * privileges" (nvml.h, nvmlDeviceGetMemoryInfo); anybody may ask each MIG device. */
#define AGGREGATE \
	if (!on.ci && on.gpu->mig_current) \
		ROOT_ONLY

/* A change of `device`: root's alone, as with the driver. */
#define CHANGE_AS(function) \
	CALL_AS(function); \
	ROOT_ONLY; \
	host_t *host CHANGING = state_begin(); \
	target_t on; \
	if (!host) \
		return NVML_ERROR_NO_PERMISSION; \
	if ((call.result = handle_device(host, device, &on)) != NVML_SUCCESS) \
		return call.result
#define CHANGE(name) CHANGE_AS(F_##name)

/* Answers. A figure that the configuration leaves out is NOT_SUPPORTED, as an empty text is. */
nvmlReturn_t give(unsigned *out, int64_t value);
nvmlReturn_t give_text(char *out, unsigned length, const char *text);

/* Lists: `count` holds the room in and the number of entries out. INSUFFICIENT_SIZE when the buffer
 * is too small, or absent though there are entries. */
nvmlReturn_t give_list(unsigned *count, unsigned found, const void *buffer);

#endif
