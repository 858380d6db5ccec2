/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Files that processes map together, and the locked bytes that tell which of these processes live.
 */
#ifndef SHARED_FILE_H
#define SHARED_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Maps the file, which may be empty, and makes it `size` bytes long where it is shorter. The mapping
 * does not pass to a child of fork. *descriptor is of the same open file: what vgpu_take_byte locks
 * through it stays locked as long as the mapping is there, so the caller closes it when it has its
 * byte. NULL: errno says why. */
void *vgpu_open_shared(const char *path, size_t size, int *descriptor);
/* True: the byte is now ours, for as long as the process lives and keeps the mapping. */
bool vgpu_take_byte(int descriptor, int64_t offset);
/* Asked through any descriptor of the file (vgpu_reopen): whether a living process has the byte,
 * this one included. True where it cannot be told. */
bool vgpu_byte_is_taken(int descriptor, int64_t offset);
/* For a moment: waits until it is ours, and gives it back. */
bool vgpu_wait_for_byte(int descriptor, int64_t offset);
void vgpu_leave_byte(int descriptor, int64_t offset);

#endif
