/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Handles of GPUs, MIG devices and instances. A handle is a pointer to a record in this process that is never freed or
 * moved. An object always has the same handle. The record of an instance contains the instance's serial number. So the
 * handle becomes invalid when the instance is destroyed, and never refers to a later instance with the same ID.
 */
#ifndef HANDLE_H
#define HANDLE_H

#include "host.h"
#include "nvml_abi.h"

/* The GPU or instance of a handle. gi and ci may be NULL. */
typedef struct {
	gpu_t *gpu;
	gi_t *gi;
	ci_t *ci;
	int gpu_index, gi_id, ci_id;
} target_t;

/* Returns INVALID_ARGUMENT if the handle is unknown or of another kind, or if its instance was destroyed. Returns
 * GPU_IS_LOST if the GPU is lost. */
nvmlReturn_t handle_device(host_t *host, nvmlDevice_t handle, target_t *target);
nvmlReturn_t handle_gpu_instance(host_t *host, nvmlGpuInstance_t handle, target_t *target);
nvmlReturn_t handle_compute_instance(host_t *host, nvmlComputeInstance_t handle, target_t *target);

/* Returns NULL if memory is exhausted. */
nvmlDevice_t handle_of_gpu(int gpu);
nvmlDevice_t handle_of_mig_device(const target_t *target);
nvmlGpuInstance_t handle_of_gpu_instance(const target_t *target);
nvmlComputeInstance_t handle_of_compute_instance(const target_t *target);

#endif
