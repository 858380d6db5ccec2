/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The quota of this process, as its file says it: looked at again once a second.
 *
 * Unknown keys are passed over with a line in the log. A file that cannot be understood, or that
 * somebody but root could have written, changes nothing: the quota that was read before still holds.
 * Where none was, a process whose quota folder is mounted is refused all memory, and others are not limited.
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
