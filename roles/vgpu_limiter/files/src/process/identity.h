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
	IDENTITY_NONE,			/* no tenant's */
	IDENTITY_VARIABLE,		/* as OPENFLEET_VGPU says */
	IDENTITY_MOUNTED,		/* the one whose quota folder is mounted, as in containers */
	IDENTITY_UNCLEAR,		/* one of several that are mounted: nothing may be allocated */
};
/* Sets the root of all paths (base/files.h), and the tenant's name: "" where there is none. */
enum identity vgpu_identify(char name[TENANT_NAME]);

#endif
