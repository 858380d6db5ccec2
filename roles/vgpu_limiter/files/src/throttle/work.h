/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * A program's launch.
 */
#ifndef WORK_H
#define WORK_H

#include <stdbool.h>
#include <stdint.h>

/* Launched work. Launches of a kernel with different shapes (grids and blocks) take different times. */
struct work {
	const void *function;	/* or graph */
	uint64_t shape;
	bool dependent;		/* may begin before the previous launch has ended (programmatic dependent launch) */
};

#endif
