/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Switch to another quota or other seats without losing work in flight.
 */
#include "throttle/following.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "throttle/seat.h"

#define AGENT_AGAIN_NS (10 * NS_PER_SECOND)	/* interval of requests to the agent while it does not provide a turnstile */
#define AGENT_CHECK_NS (60 * NS_PER_SECOND)	/* interval of checks whether the current turnstile is still valid */
#define CHANGE_AGAIN_NS (100 * NS_PER_MS)	/* minimum interval between requests after changes */

bool follow_quota(struct throttle *t, const struct quota *quota)
{
	struct throttle_gpu *before[QUOTA_GPUS];
	bool off = true;
	memcpy(before, t->gpus, sizeof before);
	memset(t->gpus, 0, sizeof t->gpus);
	for (int i = 0; quota && i < quota->gpu_count; i++) {
		/* A GPU that is also in the new quota keeps its state. */
		for (int j = 0; t->quota && j < t->quota->gpu_count; j++)
			if (before[j] && memcmp(&quota->gpus[i].uuid, &t->quota->gpus[j].uuid, sizeof(CUuuid)) == 0)
				t->gpus[i] = before[j];
		if (t->gpus[i] && t->gpus[i]->mine) {
			if (quota->gpus[i].seat >= 0)
				seat_take(t->gpus[i], quota, &quota->gpus[i]);
			else
				seat_leave(t->gpus[i]);
		}
		off = off && quota_is_unthrottled(quota, i);
	}
	const char *blocking = getenv("CUDA_LAUNCH_BLOCKING");
	t->blocking = blocking && *blocking && strcmp(blocking, "0") != 0;
	for (int i = 0; i < QUOTA_GPUS; i++)	/* keep the mapping of a GPU that both quotas list */
		if (!quota || !t->quota || i >= quota->gpu_count || i >= t->quota->gpu_count
		    || memcmp(&quota->gpus[i].uuid, &t->quota->gpus[i].uuid, sizeof(CUuuid)) != 0
		    || quota->gpus[i].seat != t->quota->gpus[i].seat)
			t->peers[i] = (struct peer){ 0 };
	t->quota = quota;
	return !off;
}

/* Query the agent. After a failure, wait before the next query. */
static void ask(struct throttle *t, const struct quota *quota, struct seat_answer *answer, int64_t now)
{
	memset(answer, 0, sizeof *answer);
	if (t->no_agent && now < t->ask_agent_ns)
		return;
	t->no_agent = !seat_ask(quota, answer, !t->no_agent);
	t->ask_agent_ns = now + (t->no_agent ? AGENT_AGAIN_NS : AGENT_CHECK_NS);
	t->ask_change_ns = now + CHANGE_AGAIN_NS;
}

/* Update the tenant's seat on a GPU whose seat pages this process may only read. */
static void follow_peer(struct peer *peer, const struct quota_gpu *gpu, struct seat_pages *pages)
{
	struct seat *page = pages->own;
	if (!peer->looked || gpu->seat < 0)
		return;
	if (!page) {
		if (!peer->seat)
			peer->seat = seat_peer(gpu);
		return;
	}
	if (peer->page)
		munmap(peer->seat, TURNSTILE_PAGE_BYTES);
	*peer = (struct peer){ .looked = true, .page = true, .seat = page };
	pages->seats[pages->own_seat] = pages->own = NULL;
}

void follow_agent(struct throttle *t, const struct quota *quota, int64_t now)
{
	struct seat_answer answer;
	ask(t, quota, &answer, now);
	for (int i = 0; i < quota->gpu_count; i++) {
		if (t->gpus[i] && t->gpus[i]->mine)
			seat_move(t->gpus[i], quota, &quota->gpus[i], &answer.gpus[i]);
		else
			follow_peer(&t->peers[i], &quota->gpus[i], &answer.gpus[i]);
		seat_drop(&answer.gpus[i]);
	}
}

bool follow_agent_is_due(const struct throttle *t, const struct throttle_gpu *g, int64_t now)
{
	return now >= t->ask_agent_ns || (seat_has_changed(g) && now >= t->ask_change_ns);
}

struct throttle_gpu *follow_start(struct throttle *t, const struct quota *quota, int gpu, int64_t now)
{
	struct seat_answer answer;
	ask(t, quota, &answer, now);
	t->gpus[gpu] = seat_start(quota, &quota->gpus[gpu], &answer.gpus[gpu]);
	for (int i = 0; i < quota->gpu_count; i++)
		seat_drop(&answer.gpus[i]);
	return t->gpus[gpu];
}
