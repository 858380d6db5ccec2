/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Read files, and allocate memory for their content.
 */
#ifndef TOP_INPUT_H
#define TOP_INPUT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define ETC "/etc/openfleet-gpu/vgpu"
#define RUN "/run/openfleet-gpu/vgpu"

/* Return the memory, or end the program if it is NULL. */
void *need(void *memory);
/* Copy a file's beginning, because other processes may change it. Returns -1 and sets errno on failure. If `descriptor`
 * is not NULL, the file stays open as *descriptor. */
ssize_t read_file(const char *path, void *to, size_t room, int *descriptor);

/* Parse a decimal number, or return 0 without one. The C library is not used: newer versions rename their number
 * parsers, and older versions lack the new names. */
int64_t decimal(const char *text);

#endif
