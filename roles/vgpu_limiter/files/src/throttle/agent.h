/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Seats from the host's agent (openfleet-vgpu-agent.service): memory that no tenant can truncate and only its own
 * tenant can write. A file has neither property.
 *
 * The agent sends its memory for each GPU, with descriptors, to each new connection. Without an answer, the files below
 * gpus/ are used. No call here waits longer than twice AGENT_WAIT_MS.
 */
#ifndef AGENT_H
#define AGENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { AGENT_PARTS = 32, AGENT_LINE = 80, AGENT_MESSAGES = 64, AGENT_NAME = 48, AGENT_WAIT_MS = 500 };

enum agent_kind {
	AGENT_OWN,	/* "GPU-... own SEAT": own seat of the socket's tenant, readable and writable */
	AGENT_SEAT,	/* "GPU-... seat SEAT": a neighbour's seat, read-only */
	AGENT_TERMS,	/* "GPU-... terms 0": tenants of all seats, read-only */
};

/* Handle one descriptor of an answer, which is closed afterwards. */
struct agent_part {
	char gpu[AGENT_NAME];
	enum agent_kind kind;
	int seat;
	int descriptor;
};

typedef void agent_taker(void *context, const struct agent_part *);

/* Query the socket in `folder` and handle each part of the answer. False without an answer, with errno set. */
bool agent_ask(const char *folder, agent_taker *, void *context);
/* Map a part that is sealed and has this size, without inheritance by a child of fork. NULL otherwise. *inode
 * identifies the memory. */
void *agent_map(const struct agent_part *, size_t size, uint64_t *inode);

#endif
