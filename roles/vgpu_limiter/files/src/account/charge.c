/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Reserve and release memory.
 */
#include "account/charge.h"

#include "account/pool_blocks.h"
#include "account/sums.h"
#include "base/likely.h"
#include "driver/reals.h"

bool is_below_waterline(const struct target *target, uint64_t bytes)
{
	CUdevice current;
	size_t free, total;
	if (LIKELY(target->waterline == 0) || REAL(cuCtxGetDevice)(&current) != CUDA_SUCCESS || current != target->device
	    || REAL(cuMemGetInfo_v2)(&free, &total) != CUDA_SUCCESS || free > total)
		return true;
	uint64_t most = total * (uint64_t)target->waterline / 100, used = total - free;
	return used <= most && bytes <= most - used;
}

/* Trim pools with unused memory before reporting out of memory, as the driver does. */
bool charge(struct account *account, const struct target *target, uint64_t bytes)
{
	if (UNLIKELY(target->gpu == NO_PLACE))
		return false;
	if (UNLIKELY(target->gpu >= 0 && !is_below_waterline(target, bytes))) {
		tenant_refused(&account->tenant, target->gpu);
		return false;
	}
	if (LIKELY(tenant_reserve(&account->tenant, target->gpu, bytes, target->limit_bytes)))
		return true;
	settle_pools(account, target->gpu, true);
	if (tenant_reserve(&account->tenant, target->gpu, bytes, target->limit_bytes))
		return true;
	tenant_refused(&account->tenant, target->gpu);
	return false;
}

void uncharge(struct account *account, int gpu, uint64_t bytes)
{
	tenant_give_back(&account->tenant, gpu, bytes);
}
