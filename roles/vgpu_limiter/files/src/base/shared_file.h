/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Files that several processes map. A locked byte in the file shows that a process is alive.
 */
#ifndef SHARED_FILE_H
#define SHARED_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Map the file, and extend it to `size` bytes if it is shorter. A child of fork does not inherit the mapping.
 * *descriptor refers to the same open file description. Locks that vgpu_take_byte takes through it last as long as the
 * mapping, so the caller closes it after it has taken a byte. Returns NULL on failure, with errno set. */
void *vgpu_open_shared(const char *path, size_t size, int *descriptor);
/* Take the byte. Return true if this process owns the byte, which it does as long as it lives and keeps the mapping. */
bool vgpu_take_byte(int descriptor, int64_t offset);
/* Return whether a living process, including this one, owns the byte. Any descriptor of the file may be used
 * (vgpu_reopen). Returns true if this is unknown. */
bool vgpu_byte_is_taken(int descriptor, int64_t offset);
/* Wait until this process owns the byte, then release it. */
bool vgpu_wait_for_byte(int descriptor, int64_t offset);
void vgpu_leave_byte(int descriptor, int64_t offset);

#endif
