/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The tenant's shared region, /run/openfleet-gpu/vgpu/tenants/NAME/region.1: what each process of the
 * tenant has allocated on each GPU. The 1 in the name is the layout's version: a library with another
 * layout uses another file. A file of zeros is not yet a region, but becomes one without a repair.
 *
 * Who lives. Each process has a slot and holds a lock (F_OFD_SETLK) on the byte LOCK_SLOTS + slot of
 * the file. It belongs to the mapping, which fork does not copy and which ends with exec or the
 * process, however that ends: whoever can have the lock finds the slot's process dead. No pid is
 * compared, so the processes may be in different pid namespaces.
 *
 * Who may write. Everything but `nonce`, `contexts_changed_ns`, `peak`, `refused` and `context_kib` is written under the region's lock, whose word
 * names its holder: slot + 1, and the nonce that tells this holder from an earlier one of the slot. A waiter
 * that finds the holder dead replaces the word by its own and computes the totals again from the
 * slots: they are all that counts, and each figure in them is one 64-bit store. So a process may be
 * killed at any instruction.
 */
#ifndef REGION_H
#define REGION_H

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define REGION_MAGIC UINT64_C(0x3155504756464f00)	/* "\0OFVGPU1" */

enum {
	REGION_VERSION = 1,
	REGION_GPUS = 16,
	REGION_SLOTS = 1024,
	/* Locked bytes, far behind the contents. */
	LOCK_INIT = 1 << 24,		/* held while the header is written */
	LOCK_SLOTS = (1 << 24) + 1,
};

enum slot_state { SLOT_FREE, SLOT_USED };

struct slot {
	_Atomic uint32_t state;		/* SLOT_USED until somebody has found the process dead */
	_Atomic uint32_t nonce;		/* written by whoever holds the slot's byte */
	int64_t pid;			/* as the process sees itself, in */
	int64_t started_ns;		/* CLOCK_BOOTTIME, when it took the slot */
	char name[24];
	uint64_t pid_namespace;		/* this namespace; 0: not known */
	_Atomic int64_t contexts_changed_ns;	/* CLOCK_MONOTONIC, when its contexts or their limits did. Libraries of before: 0 */
	_Atomic uint64_t used[REGION_GPUS];	/* bytes charged for allocations */
	_Atomic uint64_t context[REGION_GPUS];	/* bytes that NVML names beyond those, or that are reserved for contexts */
};

struct region_gpu {
	unsigned char uuid[16];
	_Atomic uint32_t taken;
	_Atomic uint32_t context_kib;	/* what a context costs, 0: not known. Libraries of before leave 0 here */
	_Atomic uint64_t total;		/* of used and context of all slots */
	_Atomic uint64_t peak;		/* of total, since the region was made: when memory was there, not when it was asked for */
	_Atomic uint64_t refused;	/* times that an allocation found no room */
};

struct region {
	_Atomic uint64_t magic;		/* written last */
	uint32_t version, size;
	_Atomic uint32_t lock;		/* 0: free. Bit 31: somebody waits. Bits 0-10: slot + 1. 11-30: nonce */
	_Atomic uint32_t slot_limit;	/* slots from here on were never used */
	uint64_t unused;
	_Atomic uint64_t takeovers;	/* times that the lock of a dead process was taken over */
	uint64_t reserved[3];
	struct region_gpu gpus[REGION_GPUS];
	struct slot slots[REGION_SLOTS];
};
static_assert(sizeof(struct slot) == 320, "layout 1");
static_assert(sizeof(struct region_gpu) == 48, "layout 1");
static_assert(offsetof(struct region, gpus) == 64, "layout 1");
static_assert(sizeof(struct region) == 64 + 16 * 48 + 1024 * 320, "layout 1");

#endif
