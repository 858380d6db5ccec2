/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Find the tenant from the mounts and the environment.
 */
#include "process/identity.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/files.h"
#include "base/log.h"

#define FOLDERS "/etc/openfleet-gpu/vgpu"

/* statx(2) with STATX_ATTR_MOUNT_ROOT needs Linux 5.8. C libraries before 2.28 declare neither. */
#ifndef SYS_statx
#if defined(__x86_64__)
#define SYS_statx 332
#elif defined(__aarch64__)
#define SYS_statx 291
#endif
#endif
#define MOUNT_ROOT UINT64_C(0x2000)
struct status_x {
	uint32_t mask, block_size;
	uint64_t attributes;
	uint32_t links, owner, group;
	uint16_t mode, unused;
	uint64_t inode, size, blocks, attributes_known;
	uint64_t rest[24];
};
static_assert(sizeof(struct status_x) == 256, "struct statx");

/* Layout of an entry of getdents64(2). */
struct entry_of_folder {
	uint64_t inode, offset;
	uint16_t length;
	uint8_t type;
	char name[];
};

/* On older kernels, compare the folder's file system with its parent's. In a container they differ for a mount, because
 * the container's own files are in an image. */
static bool is_mount_point(int around, const char *name)
{
	struct status_x known = { 0 };
	if (syscall(SYS_statx, around, name, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT, 0x1 /* STATX_TYPE */, &known) == 0
	    && known.attributes_known & MOUNT_ROOT)
		return S_ISDIR(known.mode) && known.attributes & MOUNT_ROOT;
	struct stat outside, inside;
	return file_status(around, "", &outside) == 0
	    && syscall(SYS_newfstatat, around, name, &inside, AT_SYMLINK_NOFOLLOW) == 0
	    && S_ISDIR(inside.st_mode) && inside.st_dev != outside.st_dev;
}

/* Count the mounted quota folders below the root. *name becomes `wanted` if it is mounted, or else one of the others. */
static int count_mounted(const char *root, const char *wanted, char name[TENANT_NAME])
{
	char path[512];
	union { struct entry_of_folder first; char bytes[4096]; } buffer;
	int count = 0;
	if (strlen(root) + sizeof FOLDERS > sizeof path)
		return 0;
	strcpy(path, root);
	strcat(path, FOLDERS);
	int folder = vgpu_openat(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK, 0);
	if (folder < 0)
		return 0;
	long length;
	while ((length = syscall(SYS_getdents64, folder, &buffer, sizeof buffer)) > 0) {
		for (long at = 0; at < length;) {
			const struct entry_of_folder *entry = (const void *)(buffer.bytes + at);
			at += entry->length;
			if (!quota_is_name(entry->name) || !is_mount_point(folder, entry->name))
				continue;
			if (count++ == 0 || strcmp(entry->name, wanted) == 0)
				strcpy(name, entry->name);
		}
	}
	vgpu_close(folder);
	return count;
}

enum identity vgpu_identify(char name[TENANT_NAME])
{
	const char *wanted = getenv("OPENFLEET_VGPU"), *root = secure_getenv("OPENFLEET_VGPU_ROOT");
	if (!wanted)
		wanted = "";
	files_set_root("");
	bool root_fits = true;
	int count = count_mounted("", wanted, name);
	if (count == 0 && root && *root) {
		root_fits = files_set_root(root);
		count = root_fits ? count_mounted(root, wanted, name) : 0;
	}
	if (count == 1 || (count > 1 && strcmp(name, wanted) == 0)) {
		if (*wanted && strcmp(name, wanted) != 0)
			vgpu_log(LOG_NOTICE, "OPENFLEET_VGPU is %s, but the mounted quota of %s applies", wanted, name);
		return IDENTITY_MOUNTED;
	}
	*name = '\0';
	if (count > 1) {
		vgpu_log(LOG_ERR, "%d quotas are mounted below %s" FOLDERS " and OPENFLEET_VGPU names none of them: allocations on GPUs are "
		         "refused. Set it to one of the mounted names", count, files_root());
		return IDENTITY_UNCLEAR;
	}
	if (!*wanted)
		return IDENTITY_NONE;
	if (!quota_is_name(wanted) || !root_fits) {
		vgpu_log(LOG_ERR, "OPENFLEET_VGPU is not a tenant name (letters, digits, . _ -): no limit in this process");
		return IDENTITY_NONE;
	}
	strcpy(name, wanted);
	return IDENTITY_VARIABLE;
}
