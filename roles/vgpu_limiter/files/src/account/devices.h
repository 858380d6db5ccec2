/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Find the GPU of a device in the quota. Device numbers are specific to a process (CUDA_VISIBLE_DEVICES), so GPUs are
 * identified by UUID.
 */
#ifndef DEVICES_H
#define DEVICES_H

#include "account/account.h"

/* Index into quota->gpus, -1 if not in it. */
int device_in_quota(struct account *, const struct quota *, CUdevice);

#endif
