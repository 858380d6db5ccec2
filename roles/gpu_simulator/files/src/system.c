/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Calls that initialize and shut down NVML, and that return versions and texts of return codes.
 */
#include "boot.h"
#include "call.h"

static nvmlReturn_t init(function_t function)
{
	/* Another state file may have replaced the mapped one. If there is no file, there are no faults. */
	nvmlReturn_t result = state_open();
	call_t call __attribute__((cleanup(call_leave))) = call_enter_uninitialized(function);
	if (result == NVML_SUCCESS)
		result = call.result;
	if (result == NVML_SUCCESS)
		result = boot_follow();
	if (result == NVML_SUCCESS)
		call_set_initialized(1);
	return result;
}

nvmlReturn_t nvmlInit(void) { return init(F_nvmlInit); }
nvmlReturn_t nvmlInit_v2(void) { return init(F_nvmlInit_v2); }
nvmlReturn_t nvmlInitWithFlags(unsigned flags) { (void)flags; return init(F_nvmlInitWithFlags); }

nvmlReturn_t nvmlShutdown(void)
{
	CALL(nvmlShutdown);
	call_set_initialized(-1);
	return NVML_SUCCESS;
}

static nvmlReturn_t version(function_t function, char *out, unsigned length, size_t member)
{
	/* Versions can be read before nvmlInit, as with the driver's library. */
	nvmlReturn_t result = call_is_initialized() ? NVML_SUCCESS : state_open();
	call_t call __attribute__((cleanup(call_leave))) = call_enter_uninitialized(function);
	if (result != NVML_SUCCESS || (result = call.result) != NVML_SUCCESS)
		return result;
	host_t *host READING = state_read();
	return host ? give_text(out, length, (const char *)host + member) : NVML_ERROR_UNKNOWN;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *out, unsigned length)
{
	return version(F_nvmlSystemGetDriverVersion, out, length, offsetof(host_t, driver_version));
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *out, unsigned length)
{
	return version(F_nvmlSystemGetNVMLVersion, out, length, offsetof(host_t, nvml_version));
}

static nvmlReturn_t cuda_version(function_t function, int *out)
{
	nvmlReturn_t result = call_is_initialized() ? NVML_SUCCESS : state_open();
	call_t call __attribute__((cleanup(call_leave))) = call_enter_uninitialized(function);
	if (result != NVML_SUCCESS || (result = call.result) != NVML_SUCCESS)
		return result;
	host_t *host READING = state_read();
	return host ? give((unsigned *)out, host->cuda_version) : NVML_ERROR_UNKNOWN;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *out)
{
	return cuda_version(F_nvmlSystemGetCudaDriverVersion, out);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *out)
{
	return cuda_version(F_nvmlSystemGetCudaDriverVersion_v2, out);
}

const char *nvmlErrorString(nvmlReturn_t result)
{
	static const char *const words[] = {
		"Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions",
		"Already Initialized", "Not Found", "Insufficient Size", "Insufficient External Power",
		"Driver Not Loaded", "Timeout", "Interrupt Request Issue", "NVML Shared Library Not Found",
		"Function Not Found", "Corrupted infoROM", "GPU is lost", "GPU requires reset",
		"GPU access blocked by the operating system", "Driver/library version mismatch",
		"In use by another client", "Insufficient Memory", "No data", "vGPU ECC is not supported",
		"Insufficient Resources", "Frequency not supported", "Argument version mismatch",
		"Deprecated function", "Not ready", "GPU not found", "Invalid state",
		"Reset type not supported",
	};
	return (unsigned)result < sizeof words / sizeof *words ? words[result] : "Unknown Error";
}
