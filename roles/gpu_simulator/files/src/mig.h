/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * GPU instances and compute instances: what fits, and how they come and go. Knows no NVML handle.
 */
#ifndef MIG_H
#define MIG_H

#include "host.h"

/* The profile with this id, or -1. */
int mig_gi_profile_by_id(const gpu_t *gpu, unsigned id);

/* The profile with this id that a GPU instance of `slices` compute slices offers, or -1. */
int mig_ci_profile_by_id(const gpu_t *gpu, int64_t slices, unsigned id);

/* Compute slices of a GPU instance. */
int64_t mig_gi_slices(const gpu_t *gpu, const gi_t *gi);

/* SMs of a compute instance of a profile in a GPU instance. */
int64_t mig_ci_multiprocessors(const gpu_t *gpu, const gi_t *gi, const ci_profile_t *profile);

/* May an instance of the profile stand there, beside what exists? */
bool mig_gi_fits(const gpu_t *gpu, int profile, span_t at);

/* Where the driver puts an instance that is asked for without a placement; -1: nowhere (index of the placement). */
int mig_gi_best_placement(const gpu_t *gpu, int profile);

/* How many more instances of the profile can be made. */
int mig_gi_remaining(const gpu_t *gpu, int profile);

/* Makes an instance that fits; returns its id. */
int mig_gi_create(host_t *host, gpu_t *gpu, int profile, span_t at);

bool mig_ci_fits(const gpu_t *gpu, const gi_t *gi, int profile, span_t at);
int mig_ci_first_placement(const gpu_t *gpu, const gi_t *gi, int profile);
int mig_ci_remaining(const gpu_t *gpu, const gi_t *gi, int profile);

/* Makes an instance that fits, with a new UUID; returns its id, -1 when there is no randomness. */
int mig_ci_create(host_t *host, gi_t *gi, int profile, span_t at);

bool mig_has_instances(const gpu_t *gpu);
bool mig_gi_has_compute_instances(const gi_t *gi);
void mig_drop_instances(gpu_t *gpu);

/* The `index`th MIG device of a GPU in the order of GPU instance and compute instance ids; false past the last. */
bool mig_device_at(const gpu_t *gpu, int index, int *gi, int *ci);

#endif
