/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Files that processes map together, with locked bytes that show which processes are alive.
 */
#ifndef SHARED_FILE_H
#define SHARED_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Map the file and extend it to `size` bytes if it is shorter. A child of fork does not inherit the mapping.
 * *descriptor refers to the same open file. Locks by vgpu_take_byte through it last as long as the mapping, so the
 * caller closes it after taking a byte. NULL sets errno. */
void *vgpu_open_shared(const char *path, size_t size, int *descriptor);
/* True: this process owns the byte while it lives and keeps the mapping. */
bool vgpu_take_byte(int descriptor, int64_t offset);
/* Return whether a living process, including this one, owns the byte. Works through any descriptor of the file
 * (vgpu_reopen). True if unknown. */
bool vgpu_byte_is_taken(int descriptor, int64_t offset);
/* Wait until this process owns the byte, then release it. */
bool vgpu_wait_for_byte(int descriptor, int64_t offset);
void vgpu_leave_byte(int descriptor, int64_t offset);

#endif
