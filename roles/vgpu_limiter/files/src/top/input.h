/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Files, and memory for their content.
 */
#ifndef TOP_INPUT_H
#define TOP_INPUT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define ETC "/etc/openfleet-gpu/vgpu"
#define RUN "/run/openfleet-gpu/vgpu"

/* End the program without memory. */
void *need(void *memory);
/* Read the beginning of a file into a copy, because others may change it. -1 sets errno. If not NULL, *descriptor
 * stays open. */
ssize_t read_file(const char *path, void *to, size_t room, int *descriptor);

/* Parse a decimal number, 0 without one. By hand, because newer C libraries rename their number parsers, and older
 * ones lack the new names. */
int64_t decimal(const char *text);

#endif
