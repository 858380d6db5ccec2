/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * File access by direct system calls. The C library's functions are cancellation points (pthread_cancel), and a thread
 * must not be cancelled while it holds a lock.
 */
#ifndef FILES_H
#define FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Set the prefix of all paths: OPENFLEET_VGPU_ROOT in tests, empty in production. Return false if it is too long. */
bool files_set_root(const char *root);
const char *files_root(void);
/* Build a path below the root. Return false if it is too long. */
bool vgpu_path(char *to, size_t room, const char *format, ...) __attribute__((format(printf, 3, 4)));

int vgpu_openat(const char *path, int flags, unsigned mode);
long vgpu_read(int descriptor, void *, size_t);
void vgpu_close(int descriptor);
int vgpu_reopen(const char *path);	/* flags O_RDWR | O_CLOEXEC. -1 on failure */

struct stat;
/* Read the status of the path, or of the descriptor if the path is "". */
int file_status(int descriptor, const char *path, struct stat *);

/* Return the number of this process's PID namespace, or 0 if it is unknown. NVML reports host PIDs, which are valid
 * only in the initial namespace. In another namespace, the same PID may belong to an unrelated process. */
#define INITIAL_PID_NAMESPACE UINT64_C(0xeffffffc)	/* PROC_PID_INIT_INO of linux/proc_ns.h, the same on every host */
uint64_t vgpu_pid_namespace(void);

#endif
