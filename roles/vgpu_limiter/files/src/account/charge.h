/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Reserve memory before a driver call, and release it if the driver refuses.
 */
#ifndef CHARGE_H
#define CHARGE_H

#include "account/account.h"

/* The target GPU of a call. */
enum { NOT_COUNTED = -1, NO_PLACE = -2 };
struct target {
	int gpu;			/* index in the region, NOT_COUNTED, or NO_PLACE (no accounting is possible, so nothing fits) */
	CUdevice device;
	uint64_t limit_bytes;		/* UINT64_MAX: count without a limit */
	int waterline;			/* an offline tenant's percentage of the GPU's memory, 0: no such limit */
};

/* Return whether the memory in use by all processes stays below the waterline. Also returns true if this is unknown,
 * because the GPU's context is not current. Memory that is already allocated is never taken back. */
bool is_below_waterline(const struct target *, uint64_t bytes);
/* Reserve memory. Return false if out of memory. The check is exact, because the tenant's other processes see the
 * reservation at once. */
bool charge(struct account *, const struct target *, uint64_t bytes);
void uncharge(struct account *, int gpu, uint64_t bytes);

#endif
