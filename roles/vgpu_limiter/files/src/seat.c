/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * A place at a GPU's turnstile: the shared file, a number for this process, the tenant's seat.
 */
#include "seat.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static_assert((int)TURNSTILE_TENANT == (int)TENANT_NAME, "a seat has room for the name");

/* A number for this process, whose byte stays locked as long as the mapping is there. */
static unsigned take_number(int descriptor)
{
	/* Begin at a place of one's own, so that hundreds of processes that start at once need not try the same. */
	unsigned first = (unsigned)getpid();
	for (unsigned i = 0; i < TURNSTILE_PROCESSES; i++) {
		unsigned process = (first + i) % TURNSTILE_PROCESSES;
		if (process != 0 && vgpu_take_byte(descriptor, TURNSTILE_LOCKS + process))
			return process;
	}
	return 0;
}

/* Maps the file and takes a number there. Only where its memory is used may it be looked into: it may be truncated. */
static void open_file(struct throttle_gpu *g, const char *uuid)
{
	int descriptor;
	if (!vgpu_path(g->path, sizeof g->path, "/run/openfleet-gpu/vgpu/gpus/%s.1", uuid))
		return;
	struct turnstile *t = vgpu_open_shared(g->path, sizeof *t, &descriptor);
	if (!t)
		return;
	struct stat status = { 0 };
	file_status(descriptor, "", &status);
	g->device = status.st_dev;
	g->inode = status.st_ino;
	g->process = take_number(descriptor);
	vgpu_close(descriptor);
	if (g->process)
		g->file = t;
}

bool seat_ask(const struct quota *quota, struct agent_answer *answer, bool log)
{
	char folder[512];
	if (!vgpu_path(folder, sizeof folder, "/run/openfleet-gpu/vgpu/agent/%s", quota->tenant)) {
		answer->count = 0;
		return false;
	}
	bool answers = agent_ask(folder, answer);
	/* Without an agent there is no socket, or one that was left. Anything else is worth a line. */
	if (!answers && log && errno != ENOENT && errno != ENOTDIR && errno != ECONNREFUSED)
		vgpu_log(LOG_WARNING, "%s: the agent does not answer (error %d), so that neighbours can end this program", folder, errno);
	return answers;
}

struct turnstile *seat_peer(const struct quota_gpu *gpu)
{
	char path[512];
	int descriptor;
	if (!vgpu_path(path, sizeof path, "/run/openfleet-gpu/vgpu/gpus/%s.1", gpu->name))
		return NULL;
	struct turnstile *t = vgpu_open_shared(path, sizeof *t, &descriptor);
	if (!t)
		return NULL;
	vgpu_close(descriptor);
	return turnstile_adopt(t) ? t : NULL;
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
		atomic_store(&seat->due, 0);
		atomic_store(&seat->lead, 0);
		atomic_store(&seat->launches, 0);
		memcpy(seat->tenant, quota->tenant, sizeof seat->tenant);
	}
	g->terms = (struct terms){ (uint32_t)gpu->sm_percent, (uint32_t)quota->policy, quota->priority };
	turnstile_show(g->mine, g->seat, g->terms);
	atomic_store(&g->mine->seat_of[g->process], (uint8_t)(gpu->seat + 1));
	g->spent = false;
}

void seat_leave(struct throttle_gpu *g)
{
	turnstile_give(g->mine, g->process);
	atomic_store(&g->mine->seat_of[g->process], 0);
	g->seat = -1;
}

void seat_move(struct throttle_gpu *g, const struct quota *quota, const struct quota_gpu *gpu, const struct agent_answer *agent)
{
	bool was_sealed = g->sealed != 0;
	struct turnstile *sealed = g->file ? agent_map(agent, gpu->name, sizeof *sealed, &g->sealed) : NULL;
	if (!sealed)
		return;
	if (g->seat >= 0)
		seat_leave(g);
	if (was_sealed)
		munmap(g->mine, sizeof *g->mine);
	g->mine = sealed;
	turnstile_give(g->mine, g->process);	/* what a dead process of this number may have left */
	if (gpu->seat >= 0)
		seat_take(g, quota, gpu);
}

struct throttle_gpu *seat_start(const struct quota *quota, const struct quota_gpu *gpu, const struct agent_answer *agent)
{
	struct throttle_gpu *g = calloc(1, sizeof *g);
	if (!g)
		return NULL;
	open_file(g, gpu->name);
	if (g->file)
		g->mine = agent_map(agent, gpu->name, sizeof *g->mine, &g->sealed);
	if (g->file && !g->mine && turnstile_adopt(g->file))
		g->mine = g->file;
	if (g->mine)
		turnstile_give(g->mine, g->process);
	if (!g->mine) {
		vgpu_log(LOG_WARNING, "%s: cannot be used, so each process of %s gets the whole share of %d percent; gpu_layout makes it",
			 g->path, quota->tenant, gpu->sm_percent);
		g->mine = calloc(1, sizeof *g->mine);
		g->process = 1;
	}
	g->noise = g->process;
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
