/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The quota of this process, read from its file once a second.
 *
 * Unknown keys are ignored with a log line. An invalid file, or one that users other than root could write, changes
 * nothing: the previous quota stays. Without a previous quota, a process with a mounted quota folder is refused all
 * memory, and other processes are not limited.
 */
#ifndef QUOTA_FILE_H
#define QUOTA_FILE_H

#include "account/account.h"

/* Initially zero, except the name and `mounted`. */
struct quota_file {
	_Atomic(const struct quota *) quota;	/* NULL: passive */
	char name[TENANT_NAME];			/* tenant (identity.h) */
	bool mounted;				/* the quota folder is mounted, so without a quota everything is refused */
	bool looked;				/* opened for it at least once */
	struct { uint64_t device, inode; int64_t changed_ns, size; } read;	/* the last read file */
};

/* Read the file if it changed, and join the tenant's region. One thread at a time. */
void quota_file_read(struct quota_file *, struct account *);
/* Until a quota is read, refuse allocations on all GPUs. */
void quota_refuse_all(struct quota_file *);

#endif
