/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Log lines for operators. By default, lines from LOG_NOTICE on are sent to syslog's socket. If OPENFLEET_VGPU_LOG is
 * set, all lines are written to that file, or to `stderr`. The socket or file is opened for each line, so that the
 * program keeps no additional descriptor open.
 */
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/files.h"

enum { LINES = 20, SECONDS = 60 };

/* Allow at most LINES lines in SECONDS per process. Two threads may count the same line twice. */
static bool may_log(void)
{
	static _Atomic int64_t window_ns;
	static _Atomic int lines;
	int64_t now = coarse_ns();
	if (now - atomic_load(&window_ns) > SECONDS * NS_PER_SECOND || atomic_load(&window_ns) == 0) {
		atomic_store(&window_ns, now);
		atomic_store(&lines, 0);
	}
	return atomic_fetch_add(&lines, 1) < LINES;
}

static void to_syslog(int level, const char *text)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX, .sun_path = "/dev/log" };
	int descriptor = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (descriptor < 0)
		return;
	char line[600];
	int length = snprintf(line, sizeof line, "<%d>openfleet-vgpu[%d]: %s", LOG_USER | level, (int)getpid(), text);
	if (length >= (int)sizeof line)
		length = sizeof line - 1;
	/* The socket is connectionless, so that an unread socket never blocks the program. */
	syscall(SYS_sendto, descriptor, line, (size_t)length, MSG_NOSIGNAL | MSG_DONTWAIT, &address, sizeof address);
	vgpu_close(descriptor);
}

static void to_file(const char *path, const char *text)
{
	char line[600];
	int length = snprintf(line, sizeof line, "openfleet-vgpu[%d]: %s\n", (int)getpid(), text);
	if (length >= (int)sizeof line) {
		length = sizeof line - 1;
		line[length - 1] = '\n';
	}
	bool own = strcmp(path, "stderr") != 0;
	int descriptor = STDERR_FILENO;
	if (own)
		descriptor = vgpu_openat(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0644);
	if (descriptor < 0)
		return;
	syscall(SYS_write, descriptor, line, (size_t)length);
	if (own)
		vgpu_close(descriptor);
}

void vgpu_log(int level, const char *format, ...)
{
	int error = errno;
	const char *path = secure_getenv("OPENFLEET_VGPU_LOG");
	bool named = path && *path;
	if ((named || level <= LOG_NOTICE) && may_log()) {
		char text[512];
		va_list arguments;
		errno = error;	/* `%m` in the format needs errno */
		va_start(arguments, format);
		vsnprintf(text, sizeof text, format, arguments);
		va_end(arguments);
		if (named)
			to_file(path, text);
		else
			to_syslog(level, text);
	}
	errno = error;
}
