/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Build paths below the root, and make system calls for files.
 */
#include "base/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* After fork, the child starts with its parent's value, and sets its own before it uses a path. */
static char root[128];

bool files_set_root(const char *path)
{
	if (strlen(path) >= sizeof root)
		return false;
	strcpy(root, path);
	return true;
}

const char *files_root(void) { return root; }

bool vgpu_path(char *to, size_t room, const char *format, ...)
{
	size_t used = (size_t)snprintf(to, room, "%s", root);
	if (used >= room)
		return false;
	va_list arguments;
	va_start(arguments, format);
	int length = vsnprintf(to + used, room - used, format, arguments);
	va_end(arguments);
	return length >= 0 && (size_t)length < room - used;
}

/* glibc 2.33 changed the symbols of stat and fstat. The system call works with every glibc. */
int file_status(int descriptor, const char *path, struct stat *status)
{
	return (int)syscall(SYS_newfstatat, descriptor, path, status, *path ? 0 : AT_EMPTY_PATH);
}

uint64_t vgpu_pid_namespace(void)
{
	char path[160], text[64];
	if (!vgpu_path(path, sizeof path, "/proc/self/ns/pid"))
		return 0;
	long length = syscall(SYS_readlinkat, AT_FDCWD, path, text, sizeof text - 1);
	text[length < 0 ? 0 : length] = '\0';
	if (strncmp(text, "pid:[", 5) != 0)
		return 0;
	uint64_t number = 0;
	for (const char *digit = text + 5; *digit >= '0' && *digit <= '9'; digit++)
		number = number * 10 + (uint64_t)(*digit - '0');
	return number;
}

int vgpu_openat(const char *path, int flags, unsigned mode) { return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode); }
long vgpu_read(int descriptor, void *to, size_t room) { return syscall(SYS_read, descriptor, to, room); }
void vgpu_close(int descriptor) { syscall(SYS_close, descriptor); }

int vgpu_reopen(const char *path)
{
	int descriptor;
	do
		descriptor = vgpu_openat(path, O_RDWR | O_CLOEXEC | O_NOCTTY | O_NOFOLLOW | O_NONBLOCK, 0);
	while (descriptor < 0 && errno == EINTR);
	return descriptor;
}
