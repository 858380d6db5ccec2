/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * What the host's agent says of the tenant's processes (formats/nvml_report.h). Where it speaks, no process of the tenant asks
 * NVML, and processes in containers with their own process numbers are named too.
 *
 * Each process takes what is said of itself in place of what it reserved for contexts. It also charges what is said of
 * processes that call nothing, and of those without a slot: a process that calls does so before memory is given.
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
