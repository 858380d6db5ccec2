/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Taking a place in the tenant's region.
 */
#ifndef JOIN_H
#define JOIN_H

#include "account/tenant.h"

/* Takes a slot in the region, where this process has none yet, and finds each GPU's place in it. `first`: the process has had no
 * quota before, and so has nothing anywhere. By one thread at a time. */
void tenant_join(struct tenant *, struct quota *, bool first);

#endif
