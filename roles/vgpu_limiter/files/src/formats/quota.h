/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The tenant's quota file, /etc/openfleet-gpu/vgpu/NAME/quota. Lines of words. # begins a comment:
 *
 *   version 1
 *   tenant notebook-b
 *   counted_as notebook-a       after a rename. Default: the name under `tenant`
 *   policy fixed                fixed | contended | burst
 *   priority 0
 *   managed counted             counted (default) | oversubscribed: whether managed memory counts
 *   gpu GPU-UUID memory BYTES sm PERCENT seat NUMBER
 */
#ifndef QUOTA_H
#define QUOTA_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cuda_abi.h"

enum { QUOTA_GPUS = 16, TENANT_NAME = 64 };

struct quota_gpu {
	CUuuid uuid;
	uint64_t memory_bytes;		/* 0: another provider limits memory, so only count it */
	int sm_percent;			/* 100: never throttled */
	int seat;			/* in this GPU's turnstile */
	int region;			/* index of the GPU in the tenant's region, -1: none, so nothing fits */
	char name[48];			/* GPU-..., as in the quota file and the turnstile's name */
};

/* A quota is immutable. A new file creates a new object, and the old one stays valid for existing pointers. */
struct quota {
	char tenant[TENANT_NAME];	/* the process's tenant name */
	char counted_as[TENANT_NAME];	/* the tenant's key: name of its region and agent folder, and on its seats */
	int policy;			/* enum policy, turnstile.h */
	int priority;
	bool managed_oversubscribed;	/* whether managed memory is exempt */
	bool refuses_all;		/* the required quota is missing: no memory on any GPU */
	int gpu_count;
	struct quota_gpu gpus[QUOTA_GPUS];
};

/* Callback for each unknown key. */
typedef void quota_unknown(const char *tenant, const char *key);
/* Parse `text`, which is modified. Return NULL, or the problem with its line. */
const char *quota_parse(struct quota *, char *text, const char *tenant, int *line, quota_unknown *);
/* "GPU-..." or "MIG-..." with 32 hexadecimal digits. */
bool quota_parse_uuid(CUuuid *, const char *);
/* A tenant name without path components. */
bool quota_is_name(const char *);

#endif
