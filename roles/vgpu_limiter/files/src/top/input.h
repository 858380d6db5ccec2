/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Files, and memory for what is in them.
 */
#ifndef TOP_INPUT_H
#define TOP_INPUT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define ETC "/etc/openfleet-gpu/vgpu"
#define RUN "/run/openfleet-gpu/vgpu"

/* Ends the program where there is no memory. */
void *need(void *memory);
/* The beginning of a file; -1: errno says why. It may be read by others at the same time, so it is copied. *descriptor stays open,
 * where it is not NULL. */
ssize_t read_file(const char *path, void *to, size_t room, int *descriptor);

/* A decimal number; 0: the text begins with none. By hand: what scans numbers has another name in newer C libraries, which older
 * ones lack. */
int64_t decimal(const char *text);

#endif
