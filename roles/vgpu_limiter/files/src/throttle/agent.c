/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Get seats from the host's agent (agent.h).
 *
 * This file uses direct system calls, as base/shared_file.c does, because the C library's functions are cancellation
 * points.
 */
#include "throttle/agent.h"

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

/* Available since Linux 3.17. Headers before glibc 2.27 lack the names. */
#ifndef F_GET_SEALS
#define F_GET_SEALS 1034
#define F_SEAL_SHRINK 0x0002
#endif

static void close_descriptor(int descriptor) { syscall(SYS_close, descriptor); }

/* Build the socket's address. If the path is too long for an address, use a shorter path through *directory. The
 * caller closes *directory. */
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
	/* The first timeout also limits connect, because connect waits if the agent does not accept connections. */
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

/* Copy a line's next word. Return the rest of the line, or NULL if there is no word or it is too long. */
static const char *next_word(const char *line, char *word, size_t room)
{
	size_t length = strcspn(line, " ");
	if (length == 0 || length >= room)
		return NULL;
	memcpy(word, line, length);
	word[length] = '\0';
	return line + length + (line[length] == ' ');
}

/* Parse without the C library: newer versions rename their number parsers, and older versions lack the new names. */
static bool parse(const char *line, struct agent_part *part)
{
	static const char *const kinds[] = { [AGENT_OWN] = "own", [AGENT_SEAT] = "seat", [AGENT_TERMS] = "terms" };
	char kind[8], number[4];
	if (!(line = next_word(line, part->gpu, sizeof part->gpu)) || !(line = next_word(line, kind, sizeof kind))
	    || !(line = next_word(line, number, sizeof number)) || *line || number[strspn(number, "0123456789")])
		return false;
	part->seat = 0;
	for (const char *digit = number; *digit; digit++)
		part->seat = part->seat * 10 + (*digit - '0');
	for (int i = AGENT_OWN; i <= AGENT_TERMS; i++)
		if (strcmp(kind, kinds[i]) == 0) {
			part->kind = (enum agent_kind)i;
			return true;
		}
	return false;
}

/* Pair each line of a message with one of its descriptors. Return the number of pairs. */
static int take(agent_taker *taker, void *context, char *text, const int *descriptors, int count)
{
	int taken = 0;
	for (int i = 0; i < count; i++) {
		struct agent_part part = { .descriptor = descriptors[i] };
		char *end = text + strcspn(text, "\n");
		bool more = *end != '\0';
		*end = '\0';
		if (parse(text, &part)) {
			taker(context, &part);
			taken++;
		}
		close_descriptor(descriptors[i]);
		text = end + more;
	}
	return taken;
}

/* Receive one message. Returns a value below 0 at the end of the data. */
static int receive(int connection, agent_taker *taker, void *context)
{
	char text[AGENT_PARTS * AGENT_LINE + 1];
	union {
		struct cmsghdr header;	/* aligns the buffer */
		char bytes[CMSG_SPACE(AGENT_PARTS * sizeof(int))];
	} control;
	int descriptors[AGENT_PARTS], taken = 0;
	struct iovec into = { text, sizeof text - 1 };
	struct msghdr message = { .msg_iov = &into, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };
	long length = syscall(SYS_recvmsg, connection, &message, MSG_CMSG_CLOEXEC);
	if (length <= 0)
		return length < 0 && errno == EINTR ? 0 : -1;
	text[length] = '\0';
	for (struct cmsghdr *part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part)) {
		if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
			continue;
		size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		memcpy(descriptors, CMSG_DATA(part), count * sizeof(int));
		taken += take(taker, context, text, descriptors, (int)count);
	}
	return taken;
}

bool agent_ask(const char *folder, agent_taker *taker, void *context)
{
	int taken = 0, more = 0;
	int connection = connect_to(folder);
	if (connection < 0)
		return false;
	errno = 0;
	/* Limit the number of messages too, for programs whose signals interrupt every wait. */
	for (int i = 0; i < AGENT_MESSAGES && more >= 0; i++) {
		more = receive(connection, taker, context);
		taken += more > 0 ? more : 0;
	}
	int error = errno;
	close_descriptor(connection);
	errno = error;
	return taken > 0;
}

void *agent_map(const struct agent_part *part, size_t size, uint64_t *inode)
{
	struct stat status;
	if (syscall(SYS_newfstatat, part->descriptor, "", &status, AT_EMPTY_PATH) != 0 || status.st_size != (off_t)size)
		return NULL;
	long seals = syscall(SYS_fcntl, part->descriptor, F_GET_SEALS, 0);
	if (seals < 0 || !(seals & F_SEAL_SHRINK))
		return NULL;
	int access = part->kind == AGENT_OWN ? PROT_READ | PROT_WRITE : PROT_READ;
	void *memory = mmap(NULL, size, access, MAP_SHARED, part->descriptor, 0);
	if (memory == MAP_FAILED)
		return NULL;
	if (madvise(memory, size, MADV_DONTFORK) != 0) {
		munmap(memory, size);
		return NULL;
	}
	*inode = status.st_ino;
	return memory;
}
