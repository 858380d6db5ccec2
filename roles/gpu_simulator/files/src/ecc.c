/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * NVML calls for memory errors. All simulated errors are in device memory.
 */
#include "call.h"
#include "health.h"
#include "mig.h"

/* nvmlEccSramErrorStatus_v1_t of nvml.h: parity errors, SEC-DED errors, and the locations of uncorrected errors. */
typedef struct {
	unsigned version;
	unsigned long long aggregate[3], volatile_counts[3], sources[5];
	unsigned threshold_exceeded;
} nvmlEccSramErrorStatus_v1_t;
static_assert(STRUCT_VERSION(nvmlEccSramErrorStatus_v1_t, 1u) == 0x01000068, "nvmlEccSramErrorStatus_v1");

enum { RETIRED_FOR_CAUSES = 2 };	/* NVML_PAGE_RETIREMENT_CAUSE_COUNT */

enum { LOCATION_DEVICE_MEMORY = 2, LOCATION_SRAM = 7, LOCATION_COUNT = 8 };
enum { COUNTER_VOLATILE, COUNTER_AGGREGATE, COUNTER_COUNT };
enum { ERROR_CORRECTED, ERROR_UNCORRECTED, ERROR_COUNT };

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
	QUERY_GPU(nvmlDeviceGetEccMode);
	if (!current || !pending)
		return NVML_ERROR_INVALID_ARGUMENT;
	*current = *pending = on.gpu->ecc;
	return NVML_SUCCESS;
}

static nvmlReturn_t check(const target_t *on, unsigned error, unsigned counter, const void *out)
{
	if (!out || error >= ERROR_COUNT || counter >= COUNTER_COUNT)
		return NVML_ERROR_INVALID_ARGUMENT;
	return on->gpu->ecc ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

/* The GPU cannot attribute errors in device memory to an instance, so a MIG device reports none. */
nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned error, unsigned counter, unsigned long long *out)
{
	QUERY(nvmlDeviceGetTotalEccErrors);
	if ((call.result = check(&on, error, counter, out)) != NVML_SUCCESS)
		return call.result;
	*out = on.gi ? 0 : health_ecc_count(on.gpu, error, counter == COUNTER_AGGREGATE);
	return NVML_SUCCESS;
}

/* An H200 with driver 580.159.04 does not have separate counters for the parts of its SRAM, from L1 to CBU. */
static bool has_sram_in_one(const gpu_t *gpu)
{
	return gpu->architecture >= ARCHITECTURE_HOPPER;
}

/*
 * According to nvml.h, MIG-enabled GPUs differ: a MIG device reports only uncorrected volatile errors outside DRAM, and
 * "querying volatile errors using device handles is currently not supported".
 */
nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, unsigned error, unsigned counter, unsigned location,
                                             unsigned long long *out)
{
	QUERY(nvmlDeviceGetMemoryErrorCounter);
	if (location >= LOCATION_COUNT)
		return NVML_ERROR_INVALID_ARGUMENT;
	if ((call.result = check(&on, error, counter, out)) != NVML_SUCCESS)
		return call.result;
	bool dram = location == LOCATION_DEVICE_MEMORY;
	if (!dram && location != LOCATION_SRAM && has_sram_in_one(on.gpu))
		return NVML_ERROR_NOT_SUPPORTED;
	if (on.gi ? dram || error != ERROR_UNCORRECTED || counter != COUNTER_VOLATILE : on.gpu->mig_current && counter == COUNTER_VOLATILE)
		return NVML_ERROR_NOT_SUPPORTED;
	*out = dram ? health_ecc_count(on.gpu, error, counter == COUNTER_AGGREGATE) : 0;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceClearEccErrorCounts(nvmlDevice_t device, unsigned counter)
{
	CHANGE(nvmlDeviceClearEccErrorCounts);
	if (counter >= COUNTER_COUNT || on.gi)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!on.gpu->ecc)
		return NVML_ERROR_NOT_SUPPORTED;
	for (int error = 0; error < ERROR_COUNT; error++) {
		if (counter == COUNTER_VOLATILE)
			on.gpu->health.ecc[error].before += on.gpu->health.ecc[error].volatile_count;
		else
			on.gpu->health.ecc[error].before = 0;
		on.gpu->health.ecc[error].volatile_count = 0;
	}
	return state_commit();
}

/* "On MIG-enabled GPUs with active instances, querying the number of remapped rows is not supported" (nvml.h). */
nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *correctable, unsigned *uncorrectable, unsigned *pending,
                                       unsigned *failed)
{
	QUERY_GPU(nvmlDeviceGetRemappedRows);
	if (!correctable || !uncorrectable || !pending || !failed)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!health_has_row_remapping(on.gpu) || mig_has_instances(on.gpu))
		return NVML_ERROR_NOT_SUPPORTED;
	const health_t *health = &on.gpu->health;
	*correctable = health->remapped_correctable;
	*uncorrectable = health->remapped_uncorrectable;
	*pending = health->remap_pending;
	*failed = health->remap_failed;
	return NVML_SUCCESS;
}

/* Returns the number of banks with all, many, some, few or no spare rows left. Here, each remapped row is the first
 * one of its bank. */
nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *out)
{
	QUERY_GPU(nvmlDeviceGetRowRemapperHistogram);
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	int64_t banks = on.gpu->row_remapper_banks;
	if (banks == UNKNOWN || !health_has_row_remapping(on.gpu) || mig_has_instances(on.gpu))
		return NVML_ERROR_NOT_SUPPORTED;
	int64_t rows = on.gpu->health.remapped_correctable + on.gpu->health.remapped_uncorrectable;
	if (rows > banks)
		rows = banks;
	*out = (nvmlRowRemapperHistogramValues_t){ .max = banks - rows, .high = rows };
	return NVML_SUCCESS;
}

/*
 * The library simulates no SRAM errors. nvml.h: "for Ampere or newer". A GPU in MIG mode has no volatile counts (see
 * above). Whether it then reports only aggregate counts is undocumented.
 */
nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, nvmlEccSramErrorStatus_v1_t *out)
{
	QUERY_GPU(nvmlDeviceGetSramEccErrorStatus);
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (out->version != STRUCT_VERSION(nvmlEccSramErrorStatus_v1_t, 1u))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (!on.gpu->ecc || on.gpu->mig_current || on.gpu->architecture < ARCHITECTURE_AMPERE)
		return NVML_ERROR_NOT_SUPPORTED;
	*out = (nvmlEccSramErrorStatus_v1_t){ .version = out->version };
	return NVML_SUCCESS;
}

/*
 * GPUs without row remapping retire pages. Other GPUs never have retired pages (nvidia-smi -q -x of T4, A100 and H100,
 * github.com/NVIDIA/k8s-test-infra tests/e2e/go/assertions/nvidiasmi/testdata/hardware). Here, no page is ever retired.
 */
static bool retires_pages(const gpu_t *gpu)
{
	return gpu->ecc && !health_has_row_remapping(gpu);
}

static nvmlReturn_t retired_pages(function_t function, nvmlDevice_t device, unsigned cause, unsigned *count)
{
	QUERY_GPU_AS(function);
	if (cause >= RETIRED_FOR_CAUSES || !count)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!retires_pages(on.gpu))
		return NVML_ERROR_NOT_SUPPORTED;
	*count = 0;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, unsigned cause, unsigned *count, unsigned long long *addresses)
{
	(void)addresses;
	return retired_pages(F_nvmlDeviceGetRetiredPages, device, cause, count);
}

nvmlReturn_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t device, unsigned cause, unsigned *count, unsigned long long *addresses,
                                          unsigned long long *times)
{
	(void)addresses;
	(void)times;
	return retired_pages(F_nvmlDeviceGetRetiredPages_v2, device, cause, count);
}

nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, unsigned *pending)
{
	QUERY_GPU(nvmlDeviceGetRetiredPagesPendingStatus);
	return give(pending, retires_pages(on.gpu) ? 0 : UNKNOWN);
}
