/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Which tenant this process belongs to.
 *
 * A container has its tenant's quota folder mounted below /etc/openfleet-gpu/vgpu. That says whose it is, whatever its
 * programs have in their environment: `docker exec`, sshd, cron and `env -i` start programs without the variable.
 * On a host the folders are no mount points, and OPENFLEET_VGPU alone decides.
 */
#ifndef IDENTITY_H
#define IDENTITY_H

#include "formats/quota.h"

enum identity {
	IDENTITY_NONE,			/* of no tenant */
	IDENTITY_VARIABLE,		/* named by OPENFLEET_VGPU */
	IDENTITY_MOUNTED,		/* the mounted quota folder's tenant, as in containers */
	IDENTITY_UNCLEAR,		/* several folders are mounted, so nothing may be allocated */
};
/* Set the root of all paths (base/files.h) and the tenant's name, "" without a tenant. */
enum identity vgpu_identify(char name[TENANT_NAME]);

#endif
