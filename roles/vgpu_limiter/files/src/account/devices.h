/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Find a device's GPU in the quota by UUID. Device numbers cannot be used, because CUDA_VISIBLE_DEVICES changes them in
 * each process.
 */
#ifndef DEVICES_H
#define DEVICES_H

#include "account/account.h"

/* Return the device's index in quota->gpus, or -1 if the quota does not list the device. */
int device_in_quota(struct account *, const struct quota *, CUdevice);

#endif
