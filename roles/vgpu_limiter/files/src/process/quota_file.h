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

/* All zero at first, but for the name and `mounted`. */
struct quota_file {
	_Atomic(const struct quota *) quota;	/* NULL: passive */
	char name[TENANT_NAME];			/* of the tenant (identity.h) */
	bool mounted;				/* the quota folder is: without a quota in it everything is refused */
	bool looked;				/* for it, at least once */
	struct { uint64_t device, inode; int64_t changed_ns, size; } read;	/* the file that was read */
};

/* Reads the file if it is another one than at the last time, and joins the tenant's region. By one thread at a time. */
void quota_file_read(struct quota_file *, struct account *);
/* Until a quota is read nothing is allocated on any GPU. */
void quota_refuse_all(struct quota_file *);

#endif
