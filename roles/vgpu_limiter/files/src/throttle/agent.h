/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Seats from the host's agent (openfleet-vgpu-agent.service). The agent provides memory that no tenant can truncate,
 * and that only the seat's tenant can write. A shared file has neither property.
 *
 * For each new connection, the agent sends descriptors of its memory for each GPU. If the agent does not answer, the
 * files below gpus/ are used instead. No function here waits longer than twice AGENT_WAIT_MS.
 */
#ifndef AGENT_H
#define AGENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { AGENT_PARTS = 32, AGENT_LINE = 80, AGENT_MESSAGES = 64, AGENT_NAME = 48, AGENT_WAIT_MS = 500 };

enum agent_kind {
	AGENT_OWN,	/* "GPU-... own SEAT": the seat of the tenant that the socket belongs to, readable and writable */
	AGENT_SEAT,	/* "GPU-... seat SEAT": another tenant's seat, read-only */
	AGENT_TERMS,	/* "GPU-... terms 0": the tenants and terms of all seats, read-only */
};

/* One descriptor of an answer, with its description. The descriptor is closed after the callback returns. */
struct agent_part {
	char gpu[AGENT_NAME];
	enum agent_kind kind;
	int seat;
	int descriptor;
};

typedef void agent_taker(void *context, const struct agent_part *);

/* Query the socket in `folder`, and call `agent_taker` for each part of the answer. Return false without an answer,
 * with errno set. */
bool agent_ask(const char *folder, agent_taker *, void *context);
/* Map a part if it is sealed and has this size. A child of fork does not inherit the mapping. Returns NULL on failure.
 * *inode identifies the memory. */
void *agent_map(const struct agent_part *, size_t size, uint64_t *inode);

#endif
