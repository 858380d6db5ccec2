/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Charge memory that changes without a call of a hooked function.
 */
#include "account/settle.h"

#include "account/agent_report.h"
#include "account/graph_memory.h"
#include "account/nvml.h"
#include "account/pool_blocks.h"

void account_settle(struct account *account, const struct quota *quota)
{
	/* Driver calls below may call a hook. Do not settle recursively. */
	if (!account->tenant.region || atomic_exchange(&account->settling, true))
		return;
	settle_pools(account, -1, false);
	graphs_settle_all(account, quota);
	if (!agent_report_settle(account, quota))
		nvml_settle(account, quota);
	atomic_store(&account->settling, false);
}
