/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * GPU instances and compute instances: capacity, creation and removal. These functions do not use NVML handles.
 */
#ifndef MIG_H
#define MIG_H

#include "host.h"

/* Returns the profile with this id, or -1. */
int mig_gi_profile_by_id(const gpu_t *gpu, unsigned id);

/* Returns the profile with this id in a GPU instance of `slices` compute slices, or -1. */
int mig_ci_profile_by_id(const gpu_t *gpu, int64_t slices, unsigned id);

/* Returns the number of a GPU instance's compute slices. */
int64_t mig_gi_slices(const gpu_t *gpu, const gi_t *gi);

/* Returns the number of SMs that a compute instance of a profile has in a GPU instance. */
int64_t mig_ci_multiprocessors(const gpu_t *gpu, const gi_t *gi, const ci_profile_t *profile);

/* Returns whether an instance of the profile fits at the placement beside the existing instances. */
bool mig_gi_fits(const gpu_t *gpu, int profile, span_t at);

/* Returns the index of the placement that the driver chooses if no placement is given, or -1. */
int mig_gi_best_placement(const gpu_t *gpu, int profile);

/* Returns how many further instances of the profile fit. */
int mig_gi_remaining(const gpu_t *gpu, int profile);

/* Creates an instance that fits. Returns its id. */
int mig_gi_create(host_t *host, gpu_t *gpu, int profile, span_t at);

bool mig_ci_fits(const gpu_t *gpu, const gi_t *gi, int profile, span_t at);
int mig_ci_first_placement(const gpu_t *gpu, const gi_t *gi, int profile);
int mig_ci_remaining(const gpu_t *gpu, const gi_t *gi, int profile);

/* Creates an instance that fits, with a new UUID. Returns its ID, or -1 if no random numbers are available. */
int mig_ci_create(host_t *host, gi_t *gi, int profile, span_t at);

bool mig_has_instances(const gpu_t *gpu);
bool mig_gi_has_compute_instances(const gi_t *gi);
void mig_drop_instances(gpu_t *gpu);

/* Finds a GPU's MIG device number `index`, in order of GPU instance and compute instance ids. Returns false after the
 * last. */
bool mig_device_at(const gpu_t *gpu, int index, int *gi, int *ci);

#endif
