/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Which quota this process has, and since when.
 */
#include "quota.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "region.h"
#include "tenant.h"

enum { OVERFLOW_UID = 65534, LARGEST_FILE = 16384 };

static bool is_same(const struct state *state, const struct stat *now)
{
	return state->file.device == now->st_dev && state->file.inode == now->st_ino && state->file.size == now->st_size
	    && state->file.changed_ns == now->st_ctim.tv_sec * INT64_C(1000000000) + now->st_ctim.tv_nsec;
}

static void note(struct state *state, const struct stat *now)
{
	state->file.device = now->st_dev;
	state->file.inode = now->st_ino;
	state->file.size = now->st_size;
	state->file.changed_ns = now->st_ctim.tv_sec * INT64_C(1000000000) + now->st_ctim.tv_nsec;
}

/* Root's file, which in a user namespace without root in it belongs to the overflow user. Below
 * OPENFLEET_VGPU_ROOT also the user's own: who can set that can also do without the library. */
static const char *distrust(const struct state *state, const struct stat *file)
{
	if (!S_ISREG(file->st_mode))
		return "it is no regular file";
	if (file->st_uid != 0 && file->st_uid != OVERFLOW_UID && !(*state->root && file->st_uid == geteuid()))
		return "it does not belong to root";
	if (file->st_mode & (S_IWGRP | S_IWOTH))
		return "others than its owner may write it";
	if (file->st_size > LARGEST_FILE)
		return "it is larger than 16 KiB";
	return NULL;
}

static bool read_text(int descriptor, char *text, size_t room)
{
	size_t used = 0;
	for (;;) {
		long more = vgpu_read(descriptor, text + used, room - 1 - used);
		if (more < 0 && errno == EINTR)
			continue;
		if (more <= 0) {
			text[used] = '\0';
			return more == 0;
		}
		used += (size_t)more;
		if (used == room - 1)
			return false;
	}
}

void quota_refuse_all(struct state *state)
{
	static const struct quota refusing = { .refuses_all = true };
	const struct quota *none = NULL;
	atomic_compare_exchange_strong(&state->quota, &none, &refusing);
}

/* What the lines in the log end with where the file cannot be used. */
static const char *consequence(struct state *state)
{
	if (vgpu_has_quota(state))
		return "the quota that was read before still holds";
	if (!state->mounted)
		return "no limit in this process";
	quota_refuse_all(state);
	return "it is mounted, so allocations on GPUs are refused until there is a quota";
}

/* Quotas lie in pages of their own, which stay: another thread may be reading the old one. */
static void adopt(struct state *state, const struct quota *read)
{
	struct quota *quota = mmap(NULL, sizeof *quota, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (quota == MAP_FAILED) {
		quota_refuse_all(state);
		memset(&state->file, 0, sizeof state->file);	/* the next look tries again */
		return;
	}
	*quota = *read;
	tenant_join(state, quota);
	mprotect(quota, sizeof *quota, PROT_READ);
	bool first = !vgpu_has_quota(state);
	atomic_store_explicit(&state->quota, quota, memory_order_release);
	vgpu_log(LOG_INFO, "%s the quota of tenant %s: %d GPUs", first ? "took" : "changed to", quota->tenant, quota->gpu_count);
}

void quota_read(struct state *state)
{
	char path[512], text[LARGEST_FILE + 2];
	struct stat status;
	struct quota quota;
	int line = 0;
	if (!*state->name || !vgpu_path(path, sizeof path, "/etc/openfleet-gpu/vgpu/%s/quota", state->name))
		return;
	if (file_status(AT_FDCWD, path, &status) == 0 && is_same(state, &status))
		return;
	int descriptor = vgpu_openat(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0);
	if (descriptor < 0 || file_status(descriptor, "", &status) != 0) {
		/* Gone: the quota ends with the process. Never there: once is enough to say so. */
		if (state->file.inode != 0 || !state->looked)
			vgpu_log(LOG_NOTICE, "cannot read %s (%m): %s", path, consequence(state));
		memset(&state->file, 0, sizeof state->file);
		state->looked = true;
		if (descriptor >= 0)
			vgpu_close(descriptor);
		return;
	}
	note(state, &status);
	state->looked = true;
	const char *wrong = distrust(state, &status);
	if (!wrong && !read_text(descriptor, text, sizeof text))
		wrong = "it cannot be read whole";
	vgpu_close(descriptor);
	if (!wrong)
		wrong = quota_parse(&quota, text, state->name, &line);
	if (!wrong)
		adopt(state, &quota);
	else
		vgpu_log(LOG_ERR, "%s, line %d: %s; %s", path, line, wrong, consequence(state));
}

/* One thread does it; the others go on with what is known. */
static __attribute__((noinline)) void look_again(struct state *state, int64_t due, int64_t now)
{
	if (!atomic_compare_exchange_strong(&state->look_again_ns, &due, now + LOOK_EVERY_NS))
		return;
	int error = errno;
	mutex_lock(&state->starting);
	quota_read(state);
	mutex_unlock(&state->starting);
	const struct quota *quota = atomic_load_explicit(&state->quota, memory_order_acquire);
	if (quota)
		tenant_settle(state, quota);
	errno = error;
}

const struct quota *vgpu_quota(void)
{
	struct state *state = vgpu_state();
	if (!state)
		return NULL;
	int64_t now = vgpu_coarse_ns(), due = atomic_load_explicit(&state->look_again_ns, memory_order_relaxed);
	if (UNLIKELY(now >= due))
		look_again(state, due, now);
	return atomic_load_explicit(&state->quota, memory_order_acquire);
}
