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

/* Takes over what the agent says. False: no agent speaks, or it is silent for seconds. By one thread at a time
 * (account->settling). */
bool agent_report_settle(struct account *, const struct quota *);
/* As soon as there is a quota. */
void agent_report_first(struct account *, const struct quota *);
/* Before a second context whose cost is not known: waits for what the agent says next, two seconds and a half at most, once for a
 * GPU. False: no agent speaks. */
bool agent_report_learn(struct account *, const struct quota *);

#endif
