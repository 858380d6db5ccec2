/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The tenant's quota file, /etc/openfleet-gpu/vgpu/NAME/quota. Each line is a key and its values. # begins a comment.
 *
 *   version 1
 *   tenant notebook-b
 *   counted_as notebook-a       the tenant's earlier name after a rename. Default: the name under `tenant`
 *   policy fixed                fixed | contended | burst | colocate
 *   priority 0                  with colocate: 0 is online, other values are offline
 *   waterline 80                with colocate: percentage of the GPU up to which offline tenants use it
 *   managed counted             counted (default) | oversubscribed. counted: managed memory counts for the quota
 *   gpu GPU-UUID memory BYTES sm PERCENT seat NUMBER
 */
#ifndef QUOTA_H
#define QUOTA_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cuda_abi.h"
#include "formats/turnstile.h"

enum { QUOTA_GPUS = 16, TENANT_NAME = 64 };

struct quota_gpu {
	CUuuid uuid;
	uint64_t memory_bytes;		/* 0: another provider limits memory, so memory is only counted */
	int sm_percent;			/* 100: never throttled */
	int seat;			/* seat number in this GPU's turnstile */
	int region;			/* index of the GPU in the tenant's region. -1: no index, so nothing fits */
	char name[48];			/* GPU-..., as in the quota file and in the name of the turnstile */
};

/* A quota does not change. A changed file gets a new object, and the old object stays valid for existing pointers. */
struct quota {
	char tenant[TENANT_NAME];	/* tenant name of this process */
	char counted_as[TENANT_NAME];	/* the tenant's stable name in region paths, agent paths and seats */
	int policy;			/* enum policy in turnstile.h */
	int priority;
	int waterline;			/* 1 to 100 */
	bool managed_oversubscribed;	/* whether managed memory is exempt from the quota */
	bool refuses_all;		/* the required quota is missing, so no memory is allowed on any GPU */
	int gpu_count;
	struct quota_gpu gpus[QUOTA_GPUS];
};

/* Return whether launches of a tenant with this share are neither delayed nor measured. */
static inline bool quota_is_unthrottled(const struct quota *quota, int gpu)
{
	return quota->gpus[gpu].sm_percent >= 100 && quota->policy != POLICY_COLOCATE;
}

/* Called for each unknown key. */
typedef void quota_unknown(const char *tenant, const char *key);
/* Parse `text`, which this function modifies. Return NULL, or an error text with its line number in *line. */
const char *quota_parse(struct quota *, char *text, const char *tenant, int *line, quota_unknown *);
/* Parse "GPU-..." or "MIG-..." with 32 hexadecimal digits. */
bool quota_parse_uuid(CUuuid *, const char *);
/* Return whether the text is a tenant name. A tenant name contains no path separators. */
bool quota_is_name(const char *);

#endif
