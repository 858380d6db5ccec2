/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Turnstiles from the host's agent: see agent.h.
 *
 * The kernel's own calls are made, as in shared.c: those of the C library are points at which a cancelled thread ends.
 */
#include "agent.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define SOCKET "turnstiles.1"

/* Linux 3.17 and later; headers of C libraries before 2.27 lack the names. */
#ifndef F_GET_SEALS
#define F_GET_SEALS 1034
#define F_SEAL_SHRINK 0x0002
#endif

static void close_descriptor(int descriptor) { syscall(SYS_close, descriptor); }

/* The socket's path, or where that is too long for an address a shorter way to it. *directory is to be closed. */
static bool address_of(const char *folder, struct sockaddr_un *address, int *directory)
{
	*directory = -1;
	int length = snprintf(address->sun_path, sizeof address->sun_path, "%s/" SOCKET, folder);
	if (length > 0 && (size_t)length < sizeof address->sun_path)
		return true;
	*directory = (int)syscall(SYS_openat, AT_FDCWD, folder, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
	snprintf(address->sun_path, sizeof address->sun_path, "/proc/self/fd/%d/" SOCKET, *directory);
	return *directory >= 0;
}

static int connect_to(const char *folder)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct timeval most = { .tv_usec = AGENT_WAIT_MS * 1000 };
	int directory, error;
	if (!address_of(folder, &address, &directory))
		return -1;
	int connection = (int)syscall(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	/* The first bounds connect too: an agent that takes no connections lets them queue up. */
	bool done = connection >= 0
		&& syscall(SYS_setsockopt, connection, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most) == 0
		&& syscall(SYS_setsockopt, connection, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most) == 0
		&& syscall(SYS_connect, connection, &address, sizeof address) == 0;
	error = errno;
	if (directory >= 0)
		close_descriptor(directory);
	if (!done && connection >= 0) {
		close_descriptor(connection);
		connection = -1;
	}
	errno = error;
	return connection;
}

/* Pairs the lines of a message with its descriptors. What is too much is closed. */
static void take(struct agent_answer *answer, const char *text, const int *descriptors, int count)
{
	for (int i = 0; i < count; i++) {
		size_t length = strcspn(text, "\n");
		if (length == 0 || length >= AGENT_NAME || answer->count == AGENT_GPUS) {
			close_descriptor(descriptors[i]);
		} else {
			memcpy(answer->names[answer->count], text, length);
			answer->names[answer->count][length] = '\0';
			answer->descriptors[answer->count++] = descriptors[i];
		}
		text += length + (text[length] == '\n');
	}
}

/* False: there is no more. */
static bool receive(int connection, struct agent_answer *answer)
{
	char text[AGENT_GPUS * AGENT_NAME + 1];
	union {
		struct cmsghdr header;	/* aligns it */
		char bytes[CMSG_SPACE(AGENT_GPUS * sizeof(int))];
	} control;
	int descriptors[AGENT_GPUS];
	struct iovec into = { text, sizeof text - 1 };
	struct msghdr message = { .msg_iov = &into, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };
	long length = syscall(SYS_recvmsg, connection, &message, MSG_CMSG_CLOEXEC);
	if (length <= 0)
		return length < 0 && errno == EINTR;
	text[length] = '\0';
	for (struct cmsghdr *part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part)) {
		if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
			continue;
		size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		memcpy(descriptors, CMSG_DATA(part), count * sizeof(int));
		take(answer, text, descriptors, (int)count);
	}
	return true;
}

bool agent_ask(const char *folder, struct agent_answer *answer)
{
	answer->count = 0;
	int connection = connect_to(folder);
	if (connection < 0)
		return false;
	errno = 0;
	/* A bound, for a program whose signals interrupt each wait. */
	for (int i = 0; i < AGENT_GPUS && receive(connection, answer); i++)
		;
	int error = errno;
	close_descriptor(connection);
	errno = error;
	return answer->count > 0;
}

void agent_close(struct agent_answer *answer)
{
	while (answer->count > 0)
		close_descriptor(answer->descriptors[--answer->count]);
}

int agent_descriptor(const struct agent_answer *answer, const char *gpu)
{
	for (int i = 0; i < answer->count; i++)
		if (strcmp(answer->names[i], gpu) == 0)
			return answer->descriptors[i];
	return -1;
}

void *agent_map(const struct agent_answer *answer, const char *gpu, size_t size, uint64_t *inode)
{
	struct stat status;
	int descriptor = agent_descriptor(answer, gpu);
	if (descriptor < 0 || syscall(SYS_newfstatat, descriptor, "", &status, AT_EMPTY_PATH) != 0 || status.st_size != (off_t)size
	    || status.st_ino == *inode)
		return NULL;
	long seals = syscall(SYS_fcntl, descriptor, F_GET_SEALS, 0);
	if (seals < 0 || !(seals & F_SEAL_SHRINK))
		return NULL;
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
	if (memory == MAP_FAILED)
		return NULL;
	if (madvise(memory, size, MADV_DONTFORK) != 0) {
		munmap(memory, size);
		return NULL;
	}
	*inode = status.st_ino;
	return memory;
}
