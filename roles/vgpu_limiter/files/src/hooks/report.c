/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Hooks that report GPU memory and processes to the program. The reported total is the quota, or the GPU's size if that
 * is smaller. The reported free memory is what the tenant may still allocate. GPUs without a memory limit are reported
 * unchanged.
 */
#include <string.h>
#include <sys/mman.h>

#include "account/sums.h"
#include "driver/reals.h"
#include "process/state.h"
#include "process/target.h"

struct figures { uint64_t total, used, free; };

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Replace the memory values with the quota's. Return false if this GPU has no memory limit. The reported free memory is
 * at most the GPU's real free memory. */
static bool limited(const struct quota_gpu *gpu, uint64_t total, uint64_t free, struct figures *told)
{
	if (!gpu || gpu->memory_bytes == 0)
		return false;
	struct account *account = vgpu_account();
	told->total = least(gpu->memory_bytes, total);
	told->used = account->tenant.uncounted || gpu->region < 0 ? told->total : least(tenant_used(&account->tenant, gpu->region), told->total);
	told->free = least(told->total - told->used, free);
	return true;
}

/* --- the driver --- */

CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
	const struct quota *quota = vgpu_quota();
	int i = free || total ? vgpu_gpu_of_current_context(quota) : -1;
	if (i < 0) {
		CUresult result = REAL(cuMemGetInfo_v2)(free, total);
		if (quota && quota->refuses_all && result == CUDA_SUCCESS && free)
			*free = 0;
		return result;
	}
	/* The program may pass NULL for either pointer, but both values are needed here. */
	size_t real_free = 0, real_total = 0;
	CUresult result = REAL(cuMemGetInfo_v2)(&real_free, &real_total);
	if (result != CUDA_SUCCESS)
		return result;
	struct figures told = { .total = real_total, .free = real_free };
	limited(&quota->gpus[i], real_total, real_free, &told);
	if (free)
		*free = told.free;
	if (total)
		*total = told.total;
	return result;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	CUresult result = REAL(cuDeviceTotalMem_v2)(bytes, device);
	const struct quota *quota = vgpu_quota();
	int i = result == CUDA_SUCCESS && bytes ? vgpu_gpu_of_device(quota, device) : -1;
	if (i >= 0 && quota->gpus[i].memory_bytes)
		*bytes = least(*bytes, quota->gpus[i].memory_bytes);
	return result;
}

static unsigned in_32_bits(uint64_t bytes) { return bytes > UINT32_MAX ? UINT32_MAX : (unsigned)bytes; }

/* The old form of cuMemGetInfo returns 32-bit values, so convert the values as far as they fit. The driver does not
 * document its result for 4 GiB and more. */
CUresult cuMemGetInfo(unsigned *free, unsigned *total)
{
	CUresult result = REAL(cuMemGetInfo)(free, total);
	size_t free_bytes, total_bytes;
	if (result != CUDA_SUCCESS || !vgpu_quota_now() || cuMemGetInfo_v2(&free_bytes, &total_bytes) != CUDA_SUCCESS)
		return result;
	if (free)
		*free = in_32_bits(free_bytes);
	if (total)
		*total = in_32_bits(total_bytes);
	return result;
}

CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice device)
{
	CUresult result = REAL(cuDeviceTotalMem)(bytes, device);
	size_t whole;
	if (result == CUDA_SUCCESS && bytes && vgpu_quota_now() && cuDeviceTotalMem_v2(&whole, device) == CUDA_SUCCESS)
		*bytes = in_32_bits(whole);
	return result;
}

/* --- NVML --- */

static const struct quota_gpu *gpu_of_nvml(nvmlDevice_t device)
{
	const struct quota *quota = vgpu_quota();
	char name[96];
	CUuuid uuid;
	if (!quota || !HAVE(nvmlDeviceGetUUID) || REAL(nvmlDeviceGetUUID)(device, name, sizeof name) != NVML_SUCCESS
	    || !quota_parse_uuid(&uuid, name))
		return NULL;
	for (int i = 0; i < quota->gpu_count; i++)
		if (memcmp(&quota->gpus[i].uuid, &uuid, sizeof uuid) == 0)
			return &quota->gpus[i];
	return NULL;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	nvmlReturn_t result = REAL(nvmlDeviceGetMemoryInfo)(device, memory);
	struct figures told;
	if (result == NVML_SUCCESS && memory && limited(gpu_of_nvml(device), memory->total, memory->free, &told))
		*memory = (nvmlMemory_t){ .total = told.total, .free = told.free, .used = told.used };
	return result;
}

/* The driver's reserved memory is not the tenant's. This version of the structure reports it separately. */
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	nvmlReturn_t result = REAL(nvmlDeviceGetMemoryInfo_v2)(device, memory);
	struct figures told;
	if (result == NVML_SUCCESS && memory && limited(gpu_of_nvml(device), memory->total, memory->free, &told)) {
		memory->total = told.total;
		memory->reserved = 0;
		memory->free = told.free;
		memory->used = told.used;
	}
	return result;
}

/* --- NVML's lists of processes, reduced to the tenant's processes --- */

enum { LISTED = 1024 };
typedef nvmlReturn_t list_t(nvmlDevice_t, unsigned *, void *);

/* Keep only the tenant's entries. Entries have `size` bytes and begin with the PID. Move the tenant's entries to the
 * front, and return their number. */
static unsigned keep_own(struct tenant *tenant, char *entries, unsigned count, size_t size, unsigned *pids)
{
	unsigned kept = 0;
	int own = tenant_pids(tenant, pids);
	for (unsigned i = 0; i < count; i++) {
		unsigned pid;
		memcpy(&pid, entries + i * size, sizeof pid);
		for (int p = 0; p < own; p++) {
			if (pids[p] == pid) {
				memmove(entries + kept++ * size, entries + i * size, size);
				break;
			}
		}
	}
	return kept;
}

static nvmlReturn_t list(nvmlDevice_t device, unsigned *count, void *entries, size_t size, void *real_function)
{
	list_t *real = (list_t *)real_function;
	const struct quota_gpu *gpu = count ? gpu_of_nvml(device) : NULL;
	if (!gpu || gpu->region < 0)
		return real(device, count, entries);
	struct room { char entries[LISTED * sizeof(nvmlProcessInfo_t)]; unsigned pids[REGION_SLOTS]; };
	struct room *room = mmap(NULL, sizeof *room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (room == MAP_FAILED)
		return real(device, count, entries);
	unsigned found = LISTED;
	nvmlReturn_t result = real(device, &found, room->entries);
	if (result == NVML_SUCCESS) {
		unsigned kept = keep_own(&vgpu_account()->tenant, room->entries, found, size, room->pids);
		if (kept > 0 && (!entries || *count < kept))
			result = NVML_ERROR_INSUFFICIENT_SIZE;
		else if (kept > 0)
			memcpy(entries, room->entries, kept * size);
		*count = kept;
	}
	munmap(room, sizeof *room);
	return result;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v1_t *entries)
{
	return list(device, count, entries, sizeof *entries, vgpu_real(REAL_nvmlDeviceGetComputeRunningProcesses));
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *entries)
{
	return list(device, count, entries, sizeof *entries, vgpu_real(REAL_nvmlDeviceGetComputeRunningProcesses_v2));
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *entries)
{
	return list(device, count, entries, sizeof *entries, vgpu_real(REAL_nvmlDeviceGetComputeRunningProcesses_v3));
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v1_t *entries)
{
	return list(device, count, entries, sizeof *entries, vgpu_real(REAL_nvmlDeviceGetMPSComputeRunningProcesses));
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *entries)
{
	return list(device, count, entries, sizeof *entries, vgpu_real(REAL_nvmlDeviceGetMPSComputeRunningProcesses_v2));
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *entries)
{
	return list(device, count, entries, sizeof *entries, vgpu_real(REAL_nvmlDeviceGetMPSComputeRunningProcesses_v3));
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v1_t *entries)
{
	return list(device, count, entries, sizeof *entries, vgpu_real(REAL_nvmlDeviceGetGraphicsRunningProcesses));
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *entries)
{
	return list(device, count, entries, sizeof *entries, vgpu_real(REAL_nvmlDeviceGetGraphicsRunningProcesses_v2));
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *entries)
{
	return list(device, count, entries, sizeof *entries, vgpu_real(REAL_nvmlDeviceGetGraphicsRunningProcesses_v3));
}
