/* Copyright: (c) openfleet.gpu contributors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Check a GPU's view of another GPU of the tenant (throttle/peers.c), with seats from the arguments. Each argument is
 * one check:
 *
 *   MS:OWN:PEERS:WORK:STATE   time in milliseconds; number of launches admitted on this and on the other GPU so far;
 *                             whether the process has work here (0, 1); state of the other GPU: idle, works or late
 *
 * For each check, a line with two numbers is printed: whether this GPU is behind the other one (0, 1), and whether it
 * must hurry (0, 1). It is never the process's turn.
 */
#include "throttle/peers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "throttle/seat.h"
#include "throttle/times.h"

static struct seat seats[2];

struct seat *seat_peer(const struct quota_gpu *gpu) { return &seats[gpu->seat]; }

static int64_t due(const char *state, int64_t now)
{
	if (!strcmp(state, "idle"))
		return 0;
	return strcmp(state, "late") ? now + NS_PER_MS : now - 5 * NS_PER_MS;
}

int main(int count, char **words)
{
	static struct turnstile own = { .seats = { &seats[0] }, .count = 1 };
	struct busy *busy = calloc(1, sizeof *busy);
	struct throttle_gpu gpu = { .mine = &own, .contexts = busy };
	struct quota quota = { .gpu_count = 2, .gpus = { { .sm_percent = 50, .seat = 0 }, { .sm_percent = 50, .seat = 1 } } };
	struct throttle throttle = { .quota = &quota, .gpus = { &gpu }, .no_agent = true };
	if (!busy)
		return 1;
	for (int i = 1; i < count; i++) {
		double ms;
		unsigned long long launches, peers;
		unsigned works;
		char state[8];
		if (sscanf(words[i], "%lf:%llu:%llu:%u:%7s", &ms, &launches, &peers, &works, state) != 5)
			return fprintf(stderr, "%s: not known\n", words[i]), 2;
		int64_t now = 1000 * NS_PER_SECOND + (int64_t)(ms * NS_PER_MS);
		seats[0].launches = launches;
		seats[1].launches = peers;
		seats[1].active_until = now + ACTIVE_NS;
		seats[1].due = due(state, now);
		busy->put = busy->done + works;
		look_at_peers(&throttle, 0, true, now);
		printf("%d %d\n", gpu.behind, gpu.hurry);
	}
	free(busy);
	return 0;
}
