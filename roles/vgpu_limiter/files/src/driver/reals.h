/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Call the original functions of the driver and NVML that hooks.h lists.
 */
#ifndef REALS_H
#define REALS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/cuda_abi.h"
#include "base/likely.h"

enum real {
#define HOOK(symbol, name, version, per_thread) REAL_##symbol,
#define HOOK_NVML(symbol) REAL_##symbol,
#define CALLED(symbol) REAL_##symbol,
#define CALLED_NVML(symbol) REAL_##symbol,
#include "driver/hooks.h"
	REAL_COUNT
};

extern _Atomic(void *) vgpu_reals[REAL_COUNT];
bool vgpu_load_nvml(void);		/* false: the library is not loaded and cannot be loaded */
void *vgpu_find_real(enum real);	/* NULL if the driver lacks the function or is not loaded */
void *vgpu_real_or_refusal(enum real);	/* the function, or a stand-in that returns an error if the function is missing */

static inline void *vgpu_real(enum real which)
{
	void *found = atomic_load_explicit(&vgpu_reals[which], memory_order_acquire);
	return LIKELY(found) ? found : vgpu_real_or_refusal(which);
}

/* Call the original function of the driver or NVML. Example: REAL(cuMemFree_v2)(pointer). */
#define REAL(symbol) ((__typeof__(&symbol))vgpu_real(REAL_##symbol))
/* Return whether the function exists. Older drivers lack some. */
#define HAVE(symbol) (vgpu_find_real(REAL_##symbol) != NULL)

#endif
