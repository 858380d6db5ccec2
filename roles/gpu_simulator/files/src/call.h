/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Common parts of exported NVML functions: each is counted, applies faults, requires an initialized
 * library, and resolves its handle in one consistent state.
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

/* Counts the call and applies a due fault. call_enter also requires an initialized library. */
call_t call_enter(function_t function);
call_t call_enter_uninitialized(function_t function);
void call_leave(call_t *call);

/* Applies a fault that is armed for this GPU, because the call concerns the GPU. Use this function only between
 * state_read or state_begin and their end. Faults that kill or stop the process take effect when the call returns,
 * after it has released its locks. */
nvmlReturn_t call_concerns(int gpu);

/* Body of the functions that this library does not implement. */
nvmlReturn_t call_unsupported(function_t function);

/* The library counts nvmlInit and nvmlShutdown per process. */
void call_set_initialized(int by);
bool call_is_initialized(void);

/* Opens an exported function's body. The compiler releases variables in reverse order: the state before the call. */
#define CALL_AS(function) \
	call_t call __attribute__((cleanup(call_leave))) = call_enter(function); \
	if (call.result != NVML_SUCCESS) \
		return call.result
#define CALL(name) CALL_AS(F_##name)

/* A query of `device`: a GPU or a MIG device in `on`. */
#define QUERY_AS(function) \
	CALL_AS(function); \
	host_t *host READING = state_read(); \
	target_t on; \
	if ((call.result = handle_device(host, device, &on)) != NVML_SUCCESS) \
		return call.result
#define QUERY(name) QUERY_AS(F_##name)

/* A query of a value that only GPUs have. `device` must not be a MIG device. */
#define QUERY_GPU_AS(function) \
	QUERY_AS(function); \
	if (on.gi) \
		return NVML_ERROR_NOT_SUPPORTED
#define QUERY_GPU(name) QUERY_GPU_AS(F_##name)

/* Only root may change or query this. Applies to queries marked "Requires privileged user" in nvml.h (release 12.4):
 * placements, capacities and instances. Profiles and an instance's information are not restricted. */
#define ROOT_ONLY \
	if (geteuid() != 0) \
		return NVML_ERROR_NO_PERMISSION

/* A GPU's values in MIG mode that include all instances: "only if the caller has appropriate privileges" (nvml.h,
 * nvmlDeviceGetMemoryInfo). All users may query each MIG device. */
#define AGGREGATE \
	if (!on.ci && on.gpu->mig_current) \
		ROOT_ONLY

/* Opens the body of a change of `device`. Only root may change a GPU, as with the driver. */
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

/* Returns a result. If the value is missing in the configuration or the text is empty, the result is NOT_SUPPORTED. */
nvmlReturn_t give(unsigned *out, int64_t value);
nvmlReturn_t give_text(char *out, unsigned length, const char *text);

/* Returns a list. `count` is the capacity on input and the number of entries on output. Returns INSUFFICIENT_SIZE if
 * the buffer is too small, or if it is NULL although entries exist. */
nvmlReturn_t give_list(unsigned *count, unsigned found, const void *buffer);

#endif
