/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * vgpu-top: show the tenants of a host, their limits and usage.
 */

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "top/print.h"
#include "top/read.h"

static const char HELP[] =
	"usage: vgpu-top [--once | --json] [--interval SECONDS] [--processes]\n"
	"\n"
	"Show the vGPU tenants of this host. For each GPU of a tenant: used memory, quota, peak, refused\n"
	"allocations, share of the GPU, share used in the last interval, time by which launches were delayed,\n"
	"and processes. Only reads /etc/openfleet-gpu/vgpu and /run/openfleet-gpu/vgpu.\n"
	"\n"
	"  --once        print one table and exit, the default if the output is not a terminal\n"
	"  --json        print one object and exit\n"
	"  --interval S  seconds between two samples (default 1), from which the used share is computed\n"
	"  --processes   show processes from the start\n"
	"  --help        print this text\n"
	"\n"
	"Keys: q exits, p shows or hides processes, space refreshes, + and - change the interval,\n"
	"arrow keys, j and k move up and down. Only root sees the host PIDs of other users' processes in\n"
	"containers. A PID with * is the one in the process's own namespace. A tenant with a share of\n"
	"100 percent is never throttled, so its used share is not measured.\n";

/* --- the terminal --- */

static struct termios saved;
static volatile sig_atomic_t ended;

static void end(int signal)
{
	(void)signal;
	ended = 1;
}

static void write_all(const char *text, size_t size)
{
	while (size) {
		ssize_t written = write(STDOUT_FILENO, text, size);
		if (written < 0 && errno != EINTR)
			return;
		if (written > 0) {
			text += written;
			size -= (size_t)written;
		}
	}
}

static void leave_terminal(void)
{
	static const char normal[] = "\033[?25h\033[?1049l";
	write_all(normal, sizeof normal - 1);
	tcsetattr(STDIN_FILENO, TCSANOW, &saved);
}

static void enter_terminal(void)
{
	static const char own[] = "\033[?1049h\033[?25l";
	struct sigaction action = { .sa_handler = end };
	struct termios raw = saved;
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGHUP, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO | ISIG);
	raw.c_cc[VMIN] = 0;
	raw.c_cc[VTIME] = 0;
	tcsetattr(STDIN_FILENO, TCSANOW, &raw);
	atexit(leave_terminal);
	write_all(own, sizeof own - 1);
}

/* Print as many lines of the page as fit, starting at `from`, without wrapping. The table's header always stays
 * visible. */
static void show(int *from, double interval)
{
	struct winsize size = { .ws_row = 24, .ws_col = 80 };
	ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
	/* A terminal that does not know its size reports 0. */
	int rows = size.ws_row ? size.ws_row - 1 : 23, columns = size.ws_col ? size.ws_col : 80, lines = 0, row = 0;
	size_t length = 0;
	const char *page = printed(&length), *text = page;
	char *screen = NULL;
	FILE *out = open_memstream(&screen, &length);
	if (!out)
		return;
	for (const char *c = page; *c; c++)
		lines += *c == '\n';
	if (*from > lines - rows)
		*from = lines - rows;
	if (*from < 0)
		*from = 0;
	fprintf(out, "\033[H");
	for (int line = 0; row < rows && *text; line++) {
		const char *newline = strchr(text, '\n');
		int width = (int)(newline - text);
		if (line == 0 || line > *from) {
			fprintf(out, "%s%.*s\033[0m\033[K\n", line ? "" : "\033[1m", width < columns ? width : columns, text);
			row++;
		}
		text = newline + 1;
	}
	char hint[128];
	snprintf(hint, sizeof hint, "q exit  p processes  space refresh  +/- interval (%.1f s)  arrows move", interval);
	fprintf(out, "\033[J\033[7m%.*s\033[0m", columns - 1, hint);
	fclose(out);
	write_all(screen, length);
	free(screen);
}

enum key { KEY_NONE, KEY_END, KEY_AGAIN, KEY_REDRAW };

static enum key handle(const char *keys, ssize_t count, bool *processes, double *interval, int *from)
{
	enum key what = KEY_NONE;
	for (ssize_t i = 0; i < count; i++) {
		what = KEY_REDRAW;
		if (keys[i] == '\033' && i + 2 < count && keys[i + 1] == '[') {
			*from += keys[i + 2] == 'A' ? -1 : keys[i + 2] == 'B' ? 1 : 0;
			i += 2;
		} else if (keys[i] == 'q' || keys[i] == 'Q' || keys[i] == 3)
			return KEY_END;
		else if (keys[i] == 'p')
			*processes = !*processes;
		else if (keys[i] == 'k' || keys[i] == 'j')
			*from += keys[i] == 'k' ? -1 : 1;
		else if (keys[i] == '+' || keys[i] == '-')
			*interval = keys[i] == '+' ? (*interval < 60 ? *interval * 2 : 60) : (*interval > 0.25 ? *interval / 2 : 0.25);
		else if (keys[i] == ' ')
			return KEY_AGAIN;
	}
	return what;
}

static int watch(const char *root, double interval, bool processes)
{
	struct top *now = NULL;
	int from = 0;
	enter_terminal();
	while (!ended) {
		struct top *before = now;
		now = top_read(root, before);
		top_free(before);
		for (enum key key = KEY_REDRAW; key == KEY_REDRAW && !ended;) {
			print_again();
			print_table(now, root, processes);
			show(&from, interval);
			struct pollfd input = { .fd = STDIN_FILENO, .events = POLLIN };
			char keys[64];
			if (poll(&input, 1, (int)(interval * 1000)) <= 0)
				break;
			ssize_t count = read(STDIN_FILENO, keys, sizeof keys);
			key = count > 0 ? handle(keys, count, &processes, &interval, &from) : KEY_END;
			ended = ended || key == KEY_END;
		}
	}
	return 0;
}

static int once(const char *root, double interval, bool json, bool processes)
{
	struct timespec wait = { (time_t)interval, (long)((interval - (double)(time_t)interval) * 1e9) };
	const struct timespec moment = { .tv_nsec = 100 * NS_PER_MS };
	size_t size;
	struct top *before = top_read(root, NULL);
	if (before->tenant_count)
		nanosleep(&wait, NULL);
	struct top *now = top_read(root, before);
	/* The agent's data is up to a second old, so compute shares from two of its samples. */
	for (int i = 0; i < 20 && now->agent_ns && now->agent_ns == before->agent_ns; i++) {
		top_free(now);
		nanosleep(&moment, NULL);
		now = top_read(root, before);
	}
	if (json)
		print_json(now);
	else
		print_table(now, root, processes);
	const char *text = printed(&size);
	write_all(text, size);
	top_free(before);
	top_free(now);
	return 0;
}

int main(int count, char **words)
{
	const char *root = getenv("OPENFLEET_VGPU_ROOT");	/* the root folder can be set for tests, as for the library */
	bool one = false, json = false, processes = false;
	double interval = 1;
	for (int i = 1; i < count; i++) {
		char *end_of_number = NULL;
		if (strcmp(words[i], "--help") == 0 || strcmp(words[i], "-h") == 0)
			return fputs(HELP, stdout) < 0;
		else if (strcmp(words[i], "--once") == 0)
			one = true;
		else if (strcmp(words[i], "--json") == 0)
			json = true;
		else if (strcmp(words[i], "--processes") == 0)
			processes = true;
		else if (strcmp(words[i], "--interval") == 0 && i + 1 < count && (interval = strtod(words[++i], &end_of_number)) >= 0.01
			 && interval <= 3600 && !*end_of_number)
			continue;
		else
			return fprintf(stderr, "vgpu-top: %s: %s. See vgpu-top --help.\n", words[i],
				       end_of_number ? "not a number of seconds from 0.01 to 3600" : "unknown option or missing value"), 2;
	}
	if (!root)
		root = "";
	if (one || json || !isatty(STDOUT_FILENO) || tcgetattr(STDIN_FILENO, &saved) != 0)
		return once(root, interval, json, processes);
	return watch(root, interval, processes);
}
