/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The host agent's report of the tenant's processes (formats/nvml_report.h). If the agent runs, processes of the tenant
 * do not query NVML themselves. The report includes processes in containers with their own PID namespace.
 *
 * Each process replaces its own reservation for contexts with the reported value. Each process also charges the
 * reported values of other processes that currently make no calls, or that have no slot. A process applies the report
 * before it allocates memory.
 */
#ifndef AGENT_REPORT_H
#define AGENT_REPORT_H

#include "account/account.h"

/* Apply the agent's report. Return false if the agent is missing or has been silent for seconds. Call from one thread
 * at a time (account->settling). */
bool agent_report_settle(struct account *, const struct quota *);
/* Apply the report for the first time. Call as soon as a quota exists. */
void agent_report_first(struct account *, const struct quota *);
/* Call before a second context is created if the cost of a context is unknown. Waits up to 2.5 s for the agent's next
 * report, once per GPU. Returns false if the agent does not report. */
bool agent_report_learn(struct account *, const struct quota *);

#endif
