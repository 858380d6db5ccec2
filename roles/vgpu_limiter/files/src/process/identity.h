/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Find the tenant of this process.
 *
 * A container mounts its tenant's quota folder below /etc/openfleet-gpu/vgpu. In a container this mount decides, not
 * the environment, because `docker exec`, sshd, cron and `env -i` start programs without the variable. On a host the
 * folders are not mount points, so OPENFLEET_VGPU decides there.
 */
#ifndef IDENTITY_H
#define IDENTITY_H

#include "formats/quota.h"

enum identity {
	IDENTITY_NONE,			/* no tenant */
	IDENTITY_VARIABLE,		/* OPENFLEET_VGPU contains the tenant's name */
	IDENTITY_MOUNTED,		/* the tenant's quota folder is mounted, as in containers */
	IDENTITY_UNCLEAR,		/* several quota folders are mounted, so all allocations are refused */
};
/* Set the root of all paths (base/files.h) and the tenant's name. The name is "" without a tenant. */
enum identity vgpu_identify(char name[TENANT_NAME]);

#endif
