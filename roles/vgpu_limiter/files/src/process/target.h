/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Which GPU a call means, by the quota of this process.
 */
#ifndef TARGET_H
#define TARGET_H

#include "account/charge.h"

struct target target_of_context(void);
struct target target_of_device(CUdevice);
/* What a stream is given is done in its own context, on its own GPU, whatever context the thread has. */
struct target target_of_stream(CUstream);

/* Index into quota->gpus, -1: not in the quota, or the thread has no context. */
int vgpu_gpu_of_device(const struct quota *, CUdevice);
int vgpu_gpu_of_current_context(const struct quota *);

#endif
