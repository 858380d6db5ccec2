/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * What a program launches.
 */
#ifndef WORK_H
#define WORK_H

#include <stdbool.h>
#include <stdint.h>

/* What is launched. Launches of a kernel in different shapes (grids and blocks) take different times. */
struct work {
	const void *function;	/* or graph */
	uint64_t shape;
	bool dependent;		/* may begin before the launch ahead of it has ended (programmatic dependent launch) */
};

#endif
