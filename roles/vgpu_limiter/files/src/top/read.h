/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Read the vGPU files of a host.
 */
#ifndef TOP_READ_H
#define TOP_READ_H

#include "top/top.h"

/* Read the current state below `root`. Shares are calculated from the change since `before`, which may be NULL. */
struct top *top_read(const char *root, const struct top *before);
void top_free(struct top *);

#endif
