/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * A place at a GPU's turnstile: the shared file, a number for this process, the tenant's seat.
 */
#include "seat.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static_assert((int)TURNSTILE_TENANT == (int)TENANT_NAME, "a seat has room for the name");

/* A number for this process, whose byte stays locked as long as the mapping is there. */
static unsigned take_number(struct turnstile *t, int descriptor)
{
	/* Begin at a place of one's own, so that hundreds of processes that start at once need not try the same. */
	unsigned first = (unsigned)getpid();
	for (unsigned i = 0; i < TURNSTILE_PROCESSES; i++) {
		unsigned process = (first + i) % TURNSTILE_PROCESSES;
		if (process == 0 || !vgpu_take_byte(descriptor, TURNSTILE_LOCKS + process))
			continue;
		turnstile_give(t, process);	/* what a dead process of this number may have left */
		return process;
	}
	return 0;
}

static struct turnstile *open_turnstile(struct throttle_gpu *g, const char *uuid)
{
	int descriptor;
	if (!vgpu_path(g->path, sizeof g->path, "/run/openfleet-gpu/vgpu/gpus/%s.1", uuid))
		return NULL;
	struct turnstile *t = vgpu_open_shared(g->path, sizeof *t, &descriptor);
	if (!t)
		return NULL;
	struct stat status = { 0 };
	file_status(descriptor, "", &status);
	g->device = status.st_dev;
	g->inode = status.st_ino;
	if (turnstile_adopt(t))
		g->process = take_number(t, descriptor);
	vgpu_close(descriptor);
	return g->process ? t : NULL;
}

void seat_take(struct throttle_gpu *g, const struct quota *quota, const struct quota_gpu *gpu)
{
	struct seat *seat = &g->mine->seats[gpu->seat];
	int64_t now = now_ns();
	g->seat = gpu->seat;
	if (strncmp(seat->tenant, quota->tenant, sizeof seat->tenant) != 0) {	/* somebody else's, once */
		atomic_store(&seat->paid_until, now);
		atomic_store(&seat->active_until, 0);
		atomic_store(&seat->waiting_until, 0);
		atomic_store(&seat->used_ns, 0);
		atomic_store(&seat->throttled_ns, 0);
		memcpy(seat->tenant, quota->tenant, sizeof seat->tenant);
	}
	/* A time that no charge can have made: the file is from before the clock began anew, or was tampered with. */
	if (atomic_load(&seat->paid_until) > now + DEBT_MAX_NS)
		atomic_store(&seat->paid_until, now);
	atomic_store(&seat->percent, (uint32_t)gpu->sm_percent);
	atomic_store(&seat->policy, (uint32_t)quota->policy);
	atomic_store(&seat->priority, quota->priority);
	atomic_store(&g->mine->seat_of[g->process], (uint8_t)(gpu->seat + 1));
	g->spent = false;
}

void seat_leave(struct throttle_gpu *g)
{
	turnstile_give(g->mine, g->process);
	atomic_store(&g->mine->seat_of[g->process], 0);
	g->seat = -1;
}

struct throttle_gpu *seat_start(const struct quota *quota, const struct quota_gpu *gpu)
{
	struct throttle_gpu *g = calloc(1, sizeof *g);
	if (!g)
		return NULL;
	g->turnstile = g->mine = open_turnstile(g, gpu->name);
	if (!g->mine) {
		vgpu_log(LOG_WARNING, "%s: cannot be used, so each process of %s gets the whole share of %d percent; gpu_layout makes it",
			 g->path, quota->tenant, gpu->sm_percent);
		g->mine = calloc(1, sizeof *g->mine);
		g->process = 1;
	}
	if (g->mine)
		seat_take(g, quota, gpu);
	return g;
}

/* False where it cannot be told: the file has another's name by now, or none. The lease ends anyway. */
bool seat_holder_is_dead(const struct throttle_gpu *g, unsigned holder)
{
	struct stat status;
	int descriptor = vgpu_reopen(g->path);
	if (descriptor < 0)
		return false;
	bool dead = file_status(descriptor, "", &status) == 0 && status.st_dev == g->device && status.st_ino == g->inode
		&& !vgpu_byte_is_taken(descriptor, TURNSTILE_LOCKS + holder);
	vgpu_close(descriptor);
	return dead;
}
