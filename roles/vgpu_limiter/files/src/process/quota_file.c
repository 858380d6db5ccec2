/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Read the quota file and check its owner and mode. If the file is unusable, decide which limits apply.
 */
#include "process/quota_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "account/join.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/log.h"

enum { OVERFLOW_UID = 65534, LARGEST_FILE = 16384 };

static bool is_same(const struct quota_file *file, const struct stat *now)
{
	return file->read.device == now->st_dev && file->read.inode == now->st_ino && file->read.size == now->st_size
	    && file->read.changed_ns == now->st_ctim.tv_sec * NS_PER_SECOND + now->st_ctim.tv_nsec;
}

static void note(struct quota_file *file, const struct stat *now)
{
	file->read.device = now->st_dev;
	file->read.inode = now->st_ino;
	file->read.size = now->st_size;
	file->read.changed_ns = now->st_ctim.tv_sec * NS_PER_SECOND + now->st_ctim.tv_nsec;
}

/* Return why the file is not trusted, or NULL. Its owner must be root. In a user namespace without root, root appears
 * as the overflow user. Below OPENFLEET_VGPU_ROOT, the file may also belong to the user, who could start programs
 * without the library anyway. */
static const char *distrust(const struct stat *status)
{
	if (!S_ISREG(status->st_mode))
		return "it is not a regular file";
	if (status->st_uid != 0 && status->st_uid != OVERFLOW_UID && !(*files_root() && status->st_uid == geteuid()))
		return "it does not belong to root";
	if (status->st_mode & (S_IWGRP | S_IWOTH))
		return "users other than its owner may write it";
	if (status->st_size > LARGEST_FILE)
		return "it is larger than 16 KiB";
	return NULL;
}

static void log_unknown(const char *tenant, const char *key)
{
	vgpu_log(LOG_NOTICE, "quota of %s: unknown key `%s` is ignored", tenant, key);
}

/* Return whether a quota was ever read. */
static bool has_quota(const struct quota_file *file)
{
	const struct quota *quota = atomic_load_explicit(&file->quota, memory_order_acquire);
	return quota && !quota->refuses_all;
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

void quota_refuse_all(struct quota_file *file)
{
	static const struct quota refusing = { .refuses_all = true };
	const struct quota *none = NULL;
	atomic_compare_exchange_strong(&file->quota, &none, &refusing);
}

/* Return the end of a log line about an unusable file. */
static const char *consequence(struct quota_file *file)
{
	if (has_quota(file))
		return "the previous quota still applies";
	if (!file->mounted)
		return "no limit in this process";
	quota_refuse_all(file);
	return "it is mounted, so allocations on GPUs are refused until there is a quota";
}

/* Use a new quota. Old quotas stay in separate pages, because another thread may still read them. */
static void adopt(struct quota_file *file, struct account *account, const struct quota *read)
{
	struct quota *quota = mmap(NULL, sizeof *quota, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (quota == MAP_FAILED) {
		quota_refuse_all(file);
		memset(&file->read, 0, sizeof file->read);	/* retried at the next check */
		return;
	}
	*quota = *read;
	bool first = !has_quota(file);
	tenant_join(&account->tenant, quota, first);
	mprotect(quota, sizeof *quota, PROT_READ);
	atomic_store_explicit(&file->quota, quota, memory_order_release);
	vgpu_log(LOG_INFO, "%s the quota of tenant %s: %d GPUs", first ? "applied" : "changed to", quota->tenant, quota->gpu_count);
}

void quota_file_read(struct quota_file *file, struct account *account)
{
	char path[512], text[LARGEST_FILE + 2];
	struct stat status;
	struct quota quota;
	int line = 0;
	if (!*file->name || !vgpu_path(path, sizeof path, "/etc/openfleet-gpu/vgpu/%s/quota", file->name))
		return;
	if (file_status(AT_FDCWD, path, &status) == 0 && is_same(file, &status))
		return;
	int descriptor = vgpu_openat(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0);
	if (descriptor < 0 || file_status(descriptor, "", &status) != 0) {
		/* After the file was removed, the quota applies until the process ends. If the file never existed, log
		 * this once. */
		if (file->read.inode != 0 || !file->looked)
			vgpu_log(LOG_NOTICE, "cannot read %s (%m): %s", path, consequence(file));
		memset(&file->read, 0, sizeof file->read);
		file->looked = true;
		if (descriptor >= 0)
			vgpu_close(descriptor);
		return;
	}
	note(file, &status);
	file->looked = true;
	const char *wrong = distrust(&status);
	if (!wrong && !read_text(descriptor, text, sizeof text))
		wrong = "it cannot be read completely";
	vgpu_close(descriptor);
	if (!wrong)
		wrong = quota_parse(&quota, text, file->name, &line, log_unknown);
	if (!wrong)
		adopt(file, account, &quota);
	else
		vgpu_log(LOG_ERR, "%s, line %d: %s (%s)", path, line, wrong, consequence(file));
}
