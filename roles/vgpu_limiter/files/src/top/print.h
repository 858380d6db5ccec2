/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Output of vgpu-top. It is buffered, so that a whole screen is written at once.
 */
#ifndef TOP_PRINT_H
#define TOP_PRINT_H

#include <stddef.h>

#include "top/top.h"

void print_table(const struct top *, const char *root, bool processes);
void print_json(const struct top *);
/* Return the output since the last reset. */
void print_again(void);
const char *printed(size_t *size);

#endif
