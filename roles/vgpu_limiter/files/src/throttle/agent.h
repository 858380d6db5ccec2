/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Seats from the host's agent (openfleet-vgpu-agent.service): memory that no tenant can truncate, and that no other than its
 * own tenant can write, where a file can be both.
 *
 * The agent says on a socket, unasked, what it has for each GPU, with a descriptor for each. Where none answers, the files below
 * gpus/ serve. No call here waits for longer than AGENT_WAIT_MS in all, or two of them.
 */
#ifndef AGENT_H
#define AGENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { AGENT_PARTS = 32, AGENT_LINE = 80, AGENT_MESSAGES = 64, AGENT_NAME = 48, AGENT_WAIT_MS = 500 };

enum agent_kind {
	AGENT_OWN,	/* "GPU-... own SEAT": a seat of the tenant whose socket this is, for reading and writing */
	AGENT_SEAT,	/* "GPU-... seat SEAT": another's, for reading */
	AGENT_TERMS,	/* "GPU-... terms 0": who has which seat, for reading */
};

/* One descriptor of an answer, which is closed afterwards. */
struct agent_part {
	char gpu[AGENT_NAME];
	enum agent_kind kind;
	int seat;
	int descriptor;
};

typedef void agent_taker(void *context, const struct agent_part *);

/* Asks at the socket in `folder`, and has each part of the answer taken. False: there was none, errno says why. */
bool agent_ask(const char *folder, agent_taker *, void *context);
/* Maps a part that is sealed and of this size; the mapping does not pass to a child of fork. NULL: it is not so. *inode tells
 * memories apart. */
void *agent_map(const struct agent_part *, size_t size, uint64_t *inode);

#endif
