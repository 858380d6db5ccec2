/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The host agent's report of the tenant's processes (formats/nvml_report.h). With the agent, no process of the tenant
 * asks NVML, and processes in containers with their own PID namespace are included.
 *
 * Each process replaces its reservation for contexts by its value in the report. It also charges processes that make no
 * calls, and those without a slot. A process that makes calls does this before it allocates.
 */
#ifndef AGENT_REPORT_H
#define AGENT_REPORT_H

#include "account/account.h"

/* Apply the agent's report. False if the agent is missing or silent for seconds. One thread at a time
 * (account->settling). */
bool agent_report_settle(struct account *, const struct quota *);
/* Call as soon as a quota exists. */
void agent_report_first(struct account *, const struct quota *);
/* Before a second context of unknown cost, wait up to 2.5 s for the agent's next report, once per GPU. False if the
 * agent does not report. */
bool agent_report_learn(struct account *, const struct quota *);

#endif
