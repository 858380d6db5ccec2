/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Find the tenant of this process.
 *
 * A container mounts its tenant's quota folder below /etc/openfleet-gpu/vgpu. The mount decides, not the environment,
 * because `docker exec`, sshd, cron and `env -i` start programs without the variable. On a host the folders are no
 * mount points, and only OPENFLEET_VGPU decides.
 */
#ifndef IDENTITY_H
#define IDENTITY_H

#include "formats/quota.h"

enum identity {
	IDENTITY_NONE,			/* no tenant */
	IDENTITY_VARIABLE,		/* named by OPENFLEET_VGPU */
	IDENTITY_MOUNTED,		/* the mounted quota folder's tenant, as in containers */
	IDENTITY_UNCLEAR,		/* several folders are mounted, so nothing may be allocated */
};
/* Set the root of all paths (base/files.h) and the tenant's name, "" without a tenant. */
enum identity vgpu_identify(char name[TENANT_NAME]);

#endif
