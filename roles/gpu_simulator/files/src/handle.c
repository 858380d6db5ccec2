/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 */
#include "handle.h"

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>

#include "call.h"

typedef enum { KIND_GPU, KIND_MIG_DEVICE, KIND_GI, KIND_CI } kind_t;

struct handle {
	kind_t kind;
	int gpu, gi, ci;
	uint64_t serial;	/* instance's number, 0 for a GPU */
};

enum { CHUNK = 256 };

typedef struct chunk {
	struct handle handles[CHUNK];
	int used;
	struct chunk *next;
} chunk_t;

static chunk_t *chunks;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void fork_prepare(void) { pthread_mutex_lock(&mutex); }
static void fork_done(void) { pthread_mutex_unlock(&mutex); }
/* Before a fork, the C library calls handlers in reverse order of registration. All other code locks the state's mutex
 * before this one, so this handler is registered first (the state's handler has priority 202 in state.c). */
__attribute__((constructor(201))) static void watch_forks(void)
{
	pthread_atfork(fork_prepare, fork_done, fork_done);
}

static struct handle *intern(struct handle wanted)
{
	pthread_mutex_lock(&mutex);
	struct handle *found = NULL;
	chunk_t *open = NULL;
	for (chunk_t *chunk = chunks; chunk && !found; chunk = chunk->next) {
		if (chunk->used < CHUNK)
			open = chunk;
		for (int i = 0; i < chunk->used && !found; i++) {
			struct handle *h = &chunk->handles[i];
			if (h->kind == wanted.kind && h->gpu == wanted.gpu && h->serial == wanted.serial)
				found = h;
		}
	}
	if (!found && !open && (open = calloc(1, sizeof *open))) {
		open->next = chunks;
		chunks = open;
	}
	if (!found && open) {
		found = &open->handles[open->used++];
		*found = wanted;
	}
	pthread_mutex_unlock(&mutex);
	return found;
}

/* Clients may pass invalid pointers, so compare pointers, and read only this library's own records. */
static bool is_handle(const struct handle *handle)
{
	bool ours = false;
	pthread_mutex_lock(&mutex);
	for (chunk_t *chunk = chunks; chunk && !ours; chunk = chunk->next) {
		uintptr_t offset = (uintptr_t)handle - (uintptr_t)chunk->handles;
		ours = offset < chunk->used * sizeof *handle && offset % sizeof *handle == 0;
	}
	pthread_mutex_unlock(&mutex);
	return ours;
}

static nvmlReturn_t resolve(host_t *host, const struct handle *handle, target_t *target)
{
	if (!host)
		return NVML_ERROR_UNKNOWN;
	if (handle->gpu >= host->gpu_count)
		return NVML_ERROR_GPU_IS_LOST;
	/* According to nvml.h, every query of a device can return GPU_IS_LOST, even a query of the name. */
	if (host->gpus[handle->gpu].lost)
		return NVML_ERROR_GPU_IS_LOST;
	nvmlReturn_t fault = call_concerns(handle->gpu);
	if (fault != NVML_SUCCESS)
		return fault;
	*target = (target_t){ .gpu = &host->gpus[handle->gpu], .gpu_index = handle->gpu, .gi_id = -1, .ci_id = -1 };
	if (handle->kind == KIND_GPU)
		return NVML_SUCCESS;
	target->gi_id = handle->gi;
	target->gi = &target->gpu->gis[handle->gi];
	uint64_t serial = target->gi->serial;
	if (handle->kind != KIND_GI && serial) {
		target->ci_id = handle->ci;
		target->ci = &target->gi->cis[handle->ci];
		serial = target->ci->serial;
	}
	return serial == handle->serial ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t handle_device(host_t *host, nvmlDevice_t handle, target_t *target)
{
	if (!is_handle(handle) || (handle->kind != KIND_GPU && handle->kind != KIND_MIG_DEVICE))
		return NVML_ERROR_INVALID_ARGUMENT;
	return resolve(host, handle, target);
}

nvmlReturn_t handle_gpu_instance(host_t *host, nvmlGpuInstance_t handle, target_t *target)
{
	if (!is_handle(handle) || handle->kind != KIND_GI)
		return NVML_ERROR_INVALID_ARGUMENT;
	return resolve(host, handle, target);
}

nvmlReturn_t handle_compute_instance(host_t *host, nvmlComputeInstance_t handle, target_t *target)
{
	if (!is_handle(handle) || handle->kind != KIND_CI)
		return NVML_ERROR_INVALID_ARGUMENT;
	return resolve(host, handle, target);
}

nvmlDevice_t handle_of_gpu(int gpu)
{
	return intern((struct handle){ KIND_GPU, gpu, -1, -1, 0 });
}

nvmlDevice_t handle_of_mig_device(const target_t *t)
{
	return intern((struct handle){ KIND_MIG_DEVICE, t->gpu_index, t->gi_id, t->ci_id, t->ci->serial });
}

nvmlGpuInstance_t handle_of_gpu_instance(const target_t *t)
{
	return intern((struct handle){ KIND_GI, t->gpu_index, t->gi_id, -1, t->gi->serial });
}

nvmlComputeInstance_t handle_of_compute_instance(const target_t *t)
{
	return intern((struct handle){ KIND_CI, t->gpu_index, t->gi_id, t->ci_id, t->ci->serial });
}
