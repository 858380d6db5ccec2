/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Which GPU of a quota a device is. Numbers of devices are the process's own (CUDA_VISIBLE_DEVICES), so GPUs are told by UUID.
 */
#ifndef DEVICES_H
#define DEVICES_H

#include "account/account.h"

/* Index into quota->gpus, -1 if not in it. */
int device_in_quota(struct account *, const struct quota *, CUdevice);

#endif
