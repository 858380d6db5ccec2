/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Find the host PIDs of the processes that use a region.
 */
#ifndef TOP_PROCESSES_H
#define TOP_PROCESSES_H

#include "top/top.h"

#include <sys/types.h>

/* Return whether a living process has locked the byte. */
bool is_locked(int descriptor, off_t offset);
/* Fill in the host PIDs of the tenant's processes, which map the region with this inode. */
void find_pids(struct top_tenant *, ino_t inode);

#endif
