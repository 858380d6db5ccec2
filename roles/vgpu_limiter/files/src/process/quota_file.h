/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The quota of this process. Its file is checked once a second.
 *
 * Unknown keys are ignored, and a log line reports them. If the file is invalid, or if users other than root can write
 * it, the previous quota stays. Without a previous quota, all allocations of a process with a mounted quota folder fail,
 * and other processes are not limited.
 */
#ifndef QUOTA_FILE_H
#define QUOTA_FILE_H

#include "account/account.h"

/* Initially zero, except the name and `mounted`. */
struct quota_file {
	_Atomic(const struct quota *) quota;	/* NULL: nothing is limited */
	char name[TENANT_NAME];			/* name of the tenant (identity.h) */
	bool mounted;				/* the quota folder is mounted, so everything is refused until a quota is read */
	bool looked;				/* the file was opened at least once */
	struct { uint64_t device, inode; int64_t changed_ns, size; } read;	/* identity of the file that was last read */
};

/* Read the file if it changed, and join the tenant's region. Call from one thread at a time. */
void quota_file_read(struct quota_file *, struct account *);
/* Refuse allocations on all GPUs until a quota is read. */
void quota_refuse_all(struct quota_file *);

#endif
