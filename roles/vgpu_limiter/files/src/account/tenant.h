/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * This process's slot in the tenant's region (formats/region.h). GPUs are given by their index in the region.
 */
#ifndef TENANT_H
#define TENANT_H

#include "base/mutex.h"
#include "formats/quota.h"
#include "formats/region.h"

struct tenant {
	struct mutex memory;		/* held together with the region's lock */
	struct region *region;		/* NULL: not opened yet */
	char name[TENANT_NAME];		/* quota->counted_as when the region was opened */
	uint64_t device, inode;		/* of the mapped file */
	bool uncounted;			/* the shared region cannot be used, so memory under a quota is refused */
	int slot;			/* index in region->slots */
	uint32_t nonce;			/* distinguishes this process from earlier owners of the slot */
	_Atomic uint32_t moves;		/* number of reservations and releases by this process */
};

#endif
