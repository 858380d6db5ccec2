/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Reading the files of a host.
 */
#ifndef TOP_READ_H
#define TOP_READ_H

#include "top/top.h"

/* Everything as it is now; `before` (or NULL) is what the shares are told from. Below `root`. */
struct top *top_read(const char *root, const struct top *before);
void top_free(struct top *);

#endif
