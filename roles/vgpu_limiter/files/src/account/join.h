/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Join the tenant's region.
 */
#ifndef JOIN_H
#define JOIN_H

#include "account/tenant.h"

/* Take a slot in the region if this process has none, and find each GPU's index. `first` means that the process had no
 * quota before, and therefore has no memory. Call from one thread at a time. */
void tenant_join(struct tenant *, struct quota *, bool first);

#endif
