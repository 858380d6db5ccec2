/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The work that a program launches.
 */
#ifndef WORK_H
#define WORK_H

#include <stdbool.h>
#include <stdint.h>

/* A kernel's duration depends on its shape (grid and block sizes), so launches are distinguished by shape too. */
struct work {
	const void *function;	/* the function or the graph */
	uint64_t shape;
	bool dependent;		/* may begin before the previous launch has ended (programmatic dependent launch) */
};

#endif
