/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Find the target GPU of a call in this process's quota.
 */
#ifndef TARGET_H
#define TARGET_H

#include "account/charge.h"

struct target target_of_context(void);
struct target target_of_device(CUdevice);
/* Work in a stream runs in the stream's context and on its GPU, whatever the thread's current context is. */
struct target target_of_stream(CUstream);

/* Return the index in quota->gpus, or -1 if the GPU is not in the quota or the thread has no context. */
int vgpu_gpu_of_device(const struct quota *, CUdevice);
int vgpu_gpu_of_current_context(const struct quota *);

#endif
