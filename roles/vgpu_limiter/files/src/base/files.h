/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Files, by the kernel's own calls: those of the C library are points at which a thread that was cancelled ends
 * (pthread_cancel), which must not happen with a lock held.
 */
#ifndef FILES_H
#define FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What paths begin with: OPENFLEET_VGPU_ROOT in tests, nothing in production. False: too long. */
bool files_set_root(const char *root);
const char *files_root(void);
/* A path below the root. False: too long. */
bool vgpu_path(char *to, size_t room, const char *format, ...) __attribute__((format(printf, 3, 4)));

int vgpu_openat(const char *path, int flags, unsigned mode);
long vgpu_read(int descriptor, void *, size_t);
void vgpu_close(int descriptor);
int vgpu_reopen(const char *path);	/* O_RDWR | O_CLOEXEC, -1: cannot */

struct stat;
/* Of the path, or of the descriptor where the path is "". */
int file_status(int descriptor, const char *path, struct stat *);

/* The number of this process's pid namespace, 0 where it cannot be told. NVML's numbers of processes are the host's,
 * and mean something only in the initial one: elsewhere the same number may be a stranger's. */
#define INITIAL_PID_NAMESPACE UINT64_C(0xeffffffc)	/* PROC_PID_INIT_INO of linux/proc_ns.h, the same on every host */
uint64_t vgpu_pid_namespace(void);

#endif
