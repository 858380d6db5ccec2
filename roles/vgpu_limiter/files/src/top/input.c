/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Read files that other processes may change.
 */
#include "top/input.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void *need(void *memory)
{
	if (!memory) {
		fprintf(stderr, "vgpu-top: out of memory\n");
		exit(1);
	}
	return memory;
}

ssize_t read_file(const char *path, void *to, size_t room, int *descriptor)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	if (fd < 0)
		return -1;
	size_t size = 0;
	ssize_t more;
	while (size < room && (more = read(fd, (char *)to + size, room - size)) > 0)
		size += (size_t)more;
	if (descriptor)
		*descriptor = fd;
	else
		close(fd);
	return (ssize_t)size;
}

int64_t decimal(const char *text)
{
	int64_t number = 0;
	for (; *text >= '0' && *text <= '9' && number <= INT64_MAX / 10 - 1; text++)
		number = number * 10 + (*text - '0');
	return number;
}
