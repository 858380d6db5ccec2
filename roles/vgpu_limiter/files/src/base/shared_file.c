/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * A lock of type F_OFD_SETLK belongs to the open file description, and ends when the last reference to it is gone. Here
 * the last reference is a mapping that fork does not copy, because the descriptor is closed at once. So a program that
 * closes all descriptors does not release the lock, and a child does not share it. The lock ends with exec, exit or
 * kill -9.
 */
#include "base/shared_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/files.h"

/* Available since Linux 3.15. Headers before glibc 2.20 lack the names. */
#ifndef F_OFD_GETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#define F_OFD_SETLKW 38
#endif

/* A tmpfs file has no pages before the first write. Without free memory, that write would end the program (SIGBUS). So
 * allocate all pages here, where a failure is an ordinary error. Not every file system supports this. */
static bool has_pages(int descriptor, size_t size)
{
	long result;
	do
		result = syscall(SYS_fallocate, descriptor, 0, (off_t)0, (off_t)size);
	while (result != 0 && errno == EINTR);
	return result == 0 || (errno != ENOSPC && errno != EDQUOT && errno != ENOMEM && errno != EFBIG);
}

void *vgpu_open_shared(const char *path, size_t size, int *descriptor)
{
	*descriptor = vgpu_reopen(path);
	if (*descriptor < 0)
		return NULL;
	struct stat status;
	void *memory = MAP_FAILED;
	if (file_status(*descriptor, "", &status) == 0) {
		if (!S_ISREG(status.st_mode))
			errno = EINVAL;
		/* Never shrink the file. Several processes that get here at once all set the same length. */
		else if ((status.st_size >= (off_t)size || ftruncate(*descriptor, (off_t)size) == 0) && has_pages(*descriptor, size))
			memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, *descriptor, 0);
	}
	if (memory != MAP_FAILED && madvise(memory, size, MADV_DONTFORK) == 0)
		return memory;
	int error = errno;
	if (memory != MAP_FAILED)
		munmap(memory, size);
	vgpu_close(*descriptor);
	*descriptor = -1;
	errno = error;
	return NULL;
}

bool vgpu_take_byte(int descriptor, int64_t offset)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = offset, .l_len = 1 };
	return fcntl(descriptor, F_OFD_SETLK, &lock) == 0;
}

bool vgpu_wait_for_byte(int descriptor, int64_t offset)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = offset, .l_len = 1 };
	int result;
	do
		result = (int)syscall(SYS_fcntl, descriptor, F_OFD_SETLKW, &lock);
	while (result != 0 && errno == EINTR);
	return result == 0;
}

void vgpu_leave_byte(int descriptor, int64_t offset)
{
	struct flock lock = { .l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = offset, .l_len = 1 };
	fcntl(descriptor, F_OFD_SETLK, &lock);
}

bool vgpu_byte_is_taken(int descriptor, int64_t offset)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = offset, .l_len = 1 };
	return fcntl(descriptor, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}
