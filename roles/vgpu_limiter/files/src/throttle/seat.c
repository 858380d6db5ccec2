/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Connect a process to a GPU's turnstile: map the agent's memory or the shared file, take a process number, and use the
 * tenant's seat.
 */
#include "throttle/seat.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/files.h"
#include "base/log.h"
#include "base/shared_file.h"
#include "process/state.h"
#include "throttle/agent.h"
#include "throttle/words.h"

static_assert((int)TURNSTILE_TENANT == (int)TENANT_NAME, "a seat has room for the name");
static_assert(sizeof(struct seat_page) <= 256, "the agent shows the first 256 bytes of a page");

/* Take a process number. Its byte stays locked as long as the mapping exists. */
static unsigned take_number(int descriptor)
{
	/* Start each process's search at a different number, so that hundreds of starting processes do not try the same
	 * ones. */
	unsigned first = (unsigned)getpid();
	for (unsigned i = 0; i < TURNSTILE_PROCESSES; i++) {
		unsigned process = (first + i) % TURNSTILE_PROCESSES;
		if (process != 0 && vgpu_take_byte(descriptor, TURNSTILE_LOCKS + process))
			return process;
	}
	return 0;
}

/* Choose a process number without a lock if no lock is free. Other processes then cannot check whether this process is
 * alive, and wait until its leases end. Locks in the tenant's region would not help, because other tenants cannot reach
 * them. */
static unsigned own_number(void)
{
	const struct account *account = vgpu_account();
	return TURNSTILE_PROCESSES + (account && account->tenant.region ? (unsigned)account->tenant.slot : 0);
}

/* Map the file and take a process number. Read the mapped memory only in use, because the file may be truncated. */
static void open_file(struct throttle_gpu *g, const char *uuid)
{
	int descriptor;
	if (!vgpu_path(g->path, sizeof g->path, "/run/openfleet-gpu/vgpu/gpus/%s.1", uuid))
		return;
	struct turnstile_file *t = vgpu_open_shared(g->path, sizeof *t, &descriptor);
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

/* --- the agent's pages --- */

void seat_drop(struct seat_pages *pages)
{
	for (int i = 0; i < TURNSTILE_SEATS; i++)
		if (pages->seats[i])
			munmap(pages->seats[i], TURNSTILE_PAGE_BYTES);
	if (pages->terms)
		munmap(pages->terms, TURNSTILE_TERMS_BYTES);
	*pages = (struct seat_pages){ 0 };
}

static void take_part(void *context, const struct agent_part *part)
{
	struct seat_answer *answer = context;
	struct seat_pages *pages = NULL;
	uint64_t inode;
	for (int i = 0; i < answer->quota->gpu_count; i++)
		if (strcmp(answer->quota->gpus[i].name, part->gpu) == 0)
			pages = &answer->gpus[i];
	if (!pages || part->seat < 0 || part->seat >= TURNSTILE_SEATS)
		return;
	if (part->kind == AGENT_TERMS) {
		if (!pages->terms)
			pages->terms = agent_map(part, TURNSTILE_TERMS_BYTES, &inode);
		return;
	}
	if (pages->seats[part->seat])
		return;
	struct seat *seat = pages->seats[part->seat] = agent_map(part, TURNSTILE_PAGE_BYTES, &inode);
	if (seat && part->kind == AGENT_OWN) {
		pages->own = seat;
		pages->own_seat = part->seat;
		pages->inode = inode;
	}
}

/* Return whether all parts of the answer arrived. If the program has too few free descriptors, some are missing, and
 * this process would not wait for a tenant whose seat it does not see. */
static bool is_whole(struct seat_pages *pages)
{
	if (!pages->terms || !pages->own)
		return false;
	pages->changes = atomic_load(&pages->terms->changes);
	for (int i = 0; i < TURNSTILE_SEATS; i++)
		if (!pages->seats[i] && atomic_load(&pages->terms->seats[i].percent) != 0)
			return false;
	return true;
}

bool seat_ask(const struct quota *quota, struct seat_answer *answer, bool log)
{
	char folder[512];
	memset(answer, 0, sizeof *answer);
	answer->quota = quota;
	if (!vgpu_path(folder, sizeof folder, "/run/openfleet-gpu/vgpu/agent/%s", quota->counted_as))
		return false;
	bool answers = agent_ask(folder, take_part, answer);
	/* Without an agent, the socket is missing or stale. Log all other errors. */
	if (!answers && log && errno != ENOENT && errno != ENOTDIR && errno != ECONNREFUSED)
		vgpu_log(LOG_WARNING, "%s: the agent does not answer (error %d), so neighbours can end this program", folder, errno);
	for (int i = 0; i < quota->gpu_count; i++) {
		struct seat_pages *pages = &answer->gpus[i];
		bool some = pages->terms || pages->own;
		if (is_whole(pages))
			continue;
		if (some && log)
			vgpu_log(LOG_WARNING, "%s: incomplete answer of the agent for %s, so neighbours can end this program. Allow "
				 "32 more open files (ulimit -n)", folder, quota->gpus[i].name);
		seat_drop(pages);
	}
	return answers;
}

/* --- the seat --- */

struct seat *seat_peer(const struct quota_gpu *gpu)
{
	char path[512];
	int descriptor;
	if (!vgpu_path(path, sizeof path, "/run/openfleet-gpu/vgpu/gpus/%s.1", gpu->name))
		return NULL;
	struct turnstile_file *t = vgpu_open_shared(path, sizeof *t, &descriptor);
	if (!t)
		return NULL;
	vgpu_close(descriptor);
	return turnstile_adopt(t) ? &t->seats[gpu->seat] : NULL;
}

/* Use the tenant's own memory from the agent for the seat in the quota. */
static void sit(struct throttle_gpu *g, int seat)
{
	struct seat_pages *pages = &g->pages;
	g->seat = seat;
	if (!pages->own || pages->own_seat == seat)
		return;
	/* The agent will soon report this change together with all others. */
	struct seat *other = pages->seats[seat];
	pages->seats[seat] = pages->own;
	pages->seats[pages->own_seat] = other;
	pages->own_seat = seat;
	memcpy(g->view.seats, pages->seats, sizeof g->view.seats);
	g->view.count = TURNSTILE_SEATS;
}

void seat_take(struct throttle_gpu *g, const struct quota *quota, const struct quota_gpu *gpu)
{
	int64_t now = now_ns();
	sit(g, gpu->seat);
	struct seat *seat = seat_of(g);
	if (strncmp(seat->tenant, quota->counted_as, sizeof seat->tenant) != 0) {	/* an earlier tenant used this seat */
		atomic_store(&seat->paid_until, now);
		atomic_store(&seat->active_until, 0);
		atomic_store(&seat->waiting_until, 0);
		atomic_store(&seat->used_ns, 0);
		atomic_store(&seat->throttled_ns, 0);
		atomic_store(&seat->due, 0);
		atomic_store(&seat->lead, 0);
		atomic_store(&seat->launches, 0);
		atomic_store(&seat->lease, 0);
		atomic_store(&seat->gave_way, 0);
		atomic_store(&seat->waits, 0);
		atomic_store(&seat->waits_ns, 0);
		atomic_store(&seat->late, 0);
		memcpy(seat->tenant, quota->counted_as, sizeof seat->tenant);
	}
	g->terms = (struct terms){ (uint32_t)gpu->sm_percent, (uint32_t)quota->policy, quota->priority };
	turnstile_show(seat, g->terms);
	g->spent = false;
}

void seat_leave(struct throttle_gpu *g)
{
	if (g->seat >= 0)
		turnstile_give(g->mine, g->seat, g->process);
	g->seat = -1;
}

/* Switch this process from the file to the agent's memory. */
static void adopt(struct throttle_gpu *g, struct seat_pages *pages)
{
	g->pages = *pages;
	*pages = (struct seat_pages){ 0 };
	memcpy(g->view.seats, g->pages.seats, sizeof g->view.seats);
	g->view.count = TURNSTILE_SEATS;
	g->view.terms = g->pages.terms;
	g->mine = &g->view;
}

void seat_move(struct throttle_gpu *g, const struct quota *quota, const struct quota_gpu *gpu, struct seat_pages *pages)
{
	if (!pages->terms)
		return;
	struct seat_pages before = g->pages;
	bool same = before.own && before.inode == pages->inode;
	int seat = g->seat;
	if (!same)
		seat_leave(g);
	adopt(g, pages);
	/* The next tenant of a seat must not inherit the doubts about the previous one. */
	memset(g->view.doubts, 0, sizeof g->view.doubts);
	seat_drop(&before);
	if (!same && gpu->seat >= 0)
		turnstile_give(g->mine, g->pages.own_seat, g->process);	/* remove state of a dead process that had this number */
	if (gpu->seat >= 0)
		seat_take(g, quota, gpu);
	else
		g->seat = same ? seat : -1;
}

/* Without an agent, the seats are in the file. */
static void use_file(struct throttle_gpu *g, struct turnstile_file *file)
{
	for (int i = 0; i < TURNSTILE_SEATS; i++)
		g->view.seats[i] = &file->seats[i];
	g->view.count = TURNSTILE_SEATS;
	g->mine = &g->view;
}

struct throttle_gpu *seat_start(const struct quota *quota, const struct quota_gpu *gpu, struct seat_pages *pages)
{
	struct throttle_gpu *g = calloc(1, sizeof *g);
	if (!g)
		return NULL;
	open_file(g, gpu->name);
	if (!g->process)
		g->process = own_number();
	if (pages->terms) {
		adopt(g, pages);
	} else if (g->file && turnstile_adopt(g->file)) {
		use_file(g, g->file);
	} else {
		vgpu_log(LOG_WARNING, "%s: cannot be used, so each process of %s gets the whole share of %d percent. Apply the layout to create it",
			 g->path, quota->tenant, gpu->sm_percent);
		struct turnstile_file *alone = calloc(1, sizeof *alone);
		if (alone)
			use_file(g, alone);
	}
	g->noise = g->process;
	if (g->mine) {
		/* Remove the state of a dead process that had this number. */
		turnstile_give(g->mine, g->pages.own ? g->pages.own_seat : gpu->seat, g->process);
		seat_take(g, quota, gpu);
	}
	return g;
}

/* Return whether the process is dead. Returns false if this is unknown, because the file was renamed or removed. Its
 * lease ends anyway. */
bool seat_holder_is_dead(const struct throttle_gpu *g, unsigned process)
{
	struct stat status;
	if (process >= TURNSTILE_PROCESSES)
		return false;
	int descriptor = vgpu_reopen(g->path);
	if (descriptor < 0)
		return false;
	bool dead = file_status(descriptor, "", &status) == 0 && status.st_dev == g->device && status.st_ino == g->inode
		&& !vgpu_byte_is_taken(descriptor, TURNSTILE_LOCKS + process);
	vgpu_close(descriptor);
	return dead;
}
