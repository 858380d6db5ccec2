/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Read seats.
 */
#include "top/seats.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/files.h"
#include "formats/turnstile.h"
#include "top/input.h"

/* All tenants' public data, which the agent writes once a second. agent_client.py in the collection's techniques/vgpu
 * defines the format. */
enum { SHOWN_MOST = 1 << 24 };
#define SHOWN_FILE RUN "/seats.1"
#define SHOWN_MAGIC "OFVSEAT1"
#define SHOWN_STALE_NS (5 * NS_PER_SECOND)

struct shown_header {
	char magic[8];
	int64_t time_ns;
	uint64_t count;
};

struct shown_seat {
	char gpu[48];
	uint32_t number, immutable;
	union {
		struct seat seat;
		char bytes[256];
	};
};

_Static_assert(sizeof(struct shown_header) == 24 && sizeof(struct shown_seat) == 312, "as the agent writes them");

/* Read the agent's seats. Without an agent, there are none. While the agent writes, seats may be from two samples. */
void read_seats(struct seats *seats, const char *root, int64_t now_ns)
{
	char path[512];
	struct shown_header header;
	struct stat status;
	int descriptor = -1;
	snprintf(path, sizeof path, "%s" SHOWN_FILE, root);
	if (read_file(path, &header, sizeof header, &descriptor) == (ssize_t)sizeof header && file_status(descriptor, "", &status) == 0
	    && memcmp(header.magic, SHOWN_MAGIC, sizeof header.magic) == 0 && header.time_ns <= now_ns
	    && now_ns - header.time_ns <= SHOWN_STALE_NS && status.st_size <= SHOWN_MOST
	    && header.count == ((uint64_t)status.st_size - sizeof header) / sizeof *seats->list) {
		size_t size = header.count * sizeof *seats->list;
		seats->list = need(malloc(size + 1));
		if (pread(descriptor, seats->list, size, sizeof header) == (ssize_t)size) {
			seats->count = header.count;
			seats->time_ns = header.time_ns;
		}
	}
	if (descriptor >= 0)
		close(descriptor);
}

static const struct seat *find_seat(const struct seats *seats, const char *gpu, int number)
{
	for (uint64_t i = 0; i < seats->count; i++)
		if ((int)seats->list[i].number == number && strncmp(seats->list[i].gpu, gpu, sizeof seats->list[i].gpu) == 0)
			return &seats->list[i].seat;
	return NULL;
}

void read_turnstile(struct top_tenant *tenant, int gpu, const char *root, const struct seats *seats, int64_t now_ns)
{
	char path[512];
	const struct quota_gpu *quota = &tenant->quota.gpus[gpu];
	if (quota->seat < 0 || quota->seat >= TURNSTILE_SEATS)
		return;
	struct turnstile_file *t = need(calloc(1, sizeof *t));
	const struct seat *seat = find_seat(seats, quota->name, quota->seat);
	int64_t as_of_ns = seat ? seats->time_ns : now_ns;
	snprintf(path, sizeof path, "%s" RUN "/gpus/%s.1", root, quota->name);
	if (!seat && read_file(path, t, sizeof *t, NULL) == (ssize_t)sizeof *t
	    && atomic_load(&t->magic) == TURNSTILE_MAGIC && atomic_load(&t->version) == TURNSTILE_VERSION)
		seat = &t->seats[quota->seat];
	if (seat) {
		struct top_gpu *shown = &tenant->gpus[gpu];
		shown->seated = strncmp(seat->tenant, top_key_of(tenant), sizeof seat->tenant) == 0;
		shown->as_of_ns = as_of_ns;
		shown->busy_ns = atomic_load(&seat->used_ns);
		shown->throttled_ns = atomic_load(&seat->throttled_ns);
		shown->gave_way = atomic_load(&seat->gave_way);
		shown->waits = atomic_load(&seat->waits);
		shown->waits_ns = atomic_load(&seat->waits_ns);
		shown->late = atomic_load(&seat->late);
	}
	free(t);
}
