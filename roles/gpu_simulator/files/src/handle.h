/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Handles: what clients hold of a GPU, a MIG device or an instance. Plain pointers to records of
 * this process that are never freed or moved; one and the same object always has the same handle.
 * An instance's record carries its serial number, so the handle dies with the instance and does
 * not come to mean a later one that took its id.
 */
#ifndef HANDLE_H
#define HANDLE_H

#include "host.h"
#include "nvml_abi.h"

/* The GPU or the instance that a handle stands for. gi and ci are NULL where it has none. */
typedef struct {
	gpu_t *gpu;
	gi_t *gi;
	ci_t *ci;
	int gpu_index, gi_id, ci_id;
} target_t;

/* INVALID_ARGUMENT: no such handle, or of another kind, or its instance is gone. GPU_IS_LOST: the GPU is. */
nvmlReturn_t handle_device(host_t *host, nvmlDevice_t handle, target_t *target);
nvmlReturn_t handle_gpu_instance(host_t *host, nvmlGpuInstance_t handle, target_t *target);
nvmlReturn_t handle_compute_instance(host_t *host, nvmlComputeInstance_t handle, target_t *target);

/* NULL: out of memory. */
nvmlDevice_t handle_of_gpu(int gpu);
nvmlDevice_t handle_of_mig_device(const target_t *target);
nvmlGpuInstance_t handle_of_gpu_instance(const target_t *target);
nvmlComputeInstance_t handle_of_compute_instance(const target_t *target);

#endif
