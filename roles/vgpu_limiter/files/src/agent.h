/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Turnstiles from the host's agent (openfleet-vgpu-agent.service): memory that no tenant can truncate, where a file can be.
 *
 * The agent says on a socket, unasked, which GPUs it has turnstiles of, with a descriptor for each. Where none answers, the
 * files below gpus/ serve. No call here waits for longer than AGENT_WAIT_MS in all, or two of them.
 */
#ifndef AGENT_H
#define AGENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { AGENT_GPUS = 64, AGENT_NAME = 48, AGENT_WAIT_MS = 500 };

struct agent_answer {
	int count;
	char names[AGENT_GPUS][AGENT_NAME];	/* GPU-... */
	int descriptors[AGENT_GPUS];
};

/* Asks at the socket in `folder`; to be closed. False: errno says why, and there is nothing to close. */
bool agent_ask(const char *folder, struct agent_answer *);
void agent_close(struct agent_answer *);
/* The descriptor for a GPU, which stays the answer's; -1: it has none. */
int agent_descriptor(const struct agent_answer *, const char *gpu);
/* Maps the GPU's memory, which does not pass to a child of fork. NULL: it has none that is sealed and of this size, or it is
 * the one of *inode. *inode tells memories apart. */
void *agent_map(const struct agent_answer *, const char *gpu, size_t size, uint64_t *inode);

#endif
