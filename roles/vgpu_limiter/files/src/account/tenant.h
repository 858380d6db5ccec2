/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The place of this process in its tenant's region (layout: formats/region.h). GPUs are named by their place in the region.
 */
#ifndef TENANT_H
#define TENANT_H

#include "base/mutex.h"
#include "formats/quota.h"
#include "formats/region.h"

struct tenant {
	struct mutex memory;		/* held with the region's lock */
	struct region *region;		/* NULL: not opened yet */
	char name[TENANT_NAME];		/* quota->counted_as, when the region was opened */
	uint64_t device, inode;		/* of the file that is mapped */
	bool uncounted;			/* the shared region cannot be used: what has a quota is refused */
	int slot;			/* in region->slots */
	uint32_t nonce;			/* tells this process from others that had the slot */
	_Atomic uint32_t moves;		/* how often this process reserved memory or gave some back */
};

#endif
