/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Reserving before the driver is asked, and giving back what it refuses.
 */
#ifndef CHARGE_H
#define CHARGE_H

#include "account/account.h"

/* Which GPU a call means. */
enum { NOT_COUNTED = -1, NO_PLACE = -2 };
struct target {
	int gpu;			/* place in the region; NOT_COUNTED; NO_PLACE: cannot be counted, so nothing fits */
	CUdevice device;
	uint64_t limit_bytes;		/* UINT64_MAX: only counted */
};

/* Reserves, or is false: out of memory. Exact, and seen by all processes of the tenant at once. */
bool charge(struct account *, const struct target *, uint64_t bytes);
void uncharge(struct account *, int gpu, uint64_t bytes);

#endif
