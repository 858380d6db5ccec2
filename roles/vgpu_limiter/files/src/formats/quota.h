/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The tenant's quota file, /etc/openfleet-gpu/vgpu/NAME/quota. Lines of words; # begins a comment:
 *
 *   version 1
 *   tenant notebook-b
 *   counted_as notebook-a       where the tenant was renamed; the name under `tenant` without the line
 *   policy fixed                fixed | contended | burst
 *   priority 0
 *   managed counted             counted | oversubscribed: whether managed memory counts; counted without the line
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
	uint64_t memory_bytes;		/* 0: limited by somebody else, so only counted here */
	int sm_percent;			/* 100: never throttled */
	int seat;			/* in this GPU's turnstile */
	int region;			/* the GPU's place in the tenant's region, -1: none, so that nothing fits */
	char name[48];			/* GPU-..., as in the file and in the turnstile's name */
};

/* A quota is never changed: a new file makes a new one, and the old one stays readable for whoever
 * has a pointer to it. */
struct quota {
	char tenant[TENANT_NAME];	/* the name that the process has */
	char counted_as[TENANT_NAME];	/* the tenant's key: the name of its region, of its agent's folder, and on its seats */
	int policy;			/* enum policy, turnstile.h */
	int priority;
	bool managed_oversubscribed;	/* managed memory does not count */
	bool refuses_all;		/* in place of a quota that must be there and is not: no memory on any GPU */
	int gpu_count;
	struct quota_gpu gpus[QUOTA_GPUS];
};

/* Told of each key that is not known here. */
typedef void quota_unknown(const char *tenant, const char *key);
/* Understands `text` (which it cuts into words). NULL, or what is wrong and in which line. */
const char *quota_parse(struct quota *, char *text, const char *tenant, int *line, quota_unknown *);
/* "GPU-..." or "MIG-..." with 32 hexadecimal digits. */
bool quota_parse_uuid(CUuuid *, const char *);
/* A tenant's name that cannot lead out of its directory. */
bool quota_is_name(const char *);

#endif
