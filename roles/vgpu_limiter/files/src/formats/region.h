/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The tenant's shared region, /run/openfleet-gpu/vgpu/tenants/NAME/region.1. It contains each process's allocations on
 * each GPU. The 1 in the file name is the version of the format. A library that uses another format uses another file.
 * A file of zeros is an uninitialized region.
 *
 * Liveness. Each process has a slot, and holds a lock (F_OFD_SETLK) on byte LOCK_SLOTS + slot of the file. The
 * process's mapping of the file keeps the lock, because the file's descriptor is closed. fork does not copy this
 * mapping, and exec or the end of the process removes it. So if another process can take the lock, the slot's owner is
 * dead. No PIDs are compared, so processes may be in different PID namespaces.
 *
 * Writing. All fields except `nonce`, `contexts_changed_ns`, `peak`, `refused` and `context_kib` are written under the
 * region's lock, a word in the region. The word identifies the lock's holder by slot + 1 and a nonce. The nonce
 * distinguishes the holder from earlier owners of the same slot. If a waiter finds the holder dead, it takes over the
 * lock and recomputes the totals from the slots. Each value in a slot is written by a single 64-bit store, so a
 * process may be killed at any instruction.
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
	/* Offsets of locks, far beyond the content. */
	LOCK_INIT = 1 << 24,		/* held while the header is written */
	LOCK_SLOTS = (1 << 24) + 1,
};

enum slot_state { SLOT_FREE, SLOT_USED };

struct slot {
	_Atomic uint32_t state;		/* SLOT_USED until another process finds that the owner is dead */
	_Atomic uint32_t nonce;		/* written by the process that holds the slot's lock */
	int64_t pid;			/* PID in the process's own PID namespace */
	int64_t started_ns;		/* CLOCK_BOOTTIME when the process took the slot */
	char name[24];
	uint64_t pid_namespace;		/* number of the PID namespace, 0 if unknown */
	_Atomic int64_t contexts_changed_ns;	/* CLOCK_MONOTONIC of the last change of a context or limit, 0 from older libraries */
	_Atomic uint64_t used[REGION_GPUS];	/* bytes charged for allocations */
	_Atomic uint64_t context[REGION_GPUS];	/* bytes that NVML reports beyond `used`, or bytes reserved for contexts */
};

struct region_gpu {
	unsigned char uuid[16];
	_Atomic uint32_t taken;
	_Atomic uint32_t context_kib;	/* cost of a context, 0 if unknown. Older libraries write 0 */
	_Atomic uint64_t total;		/* sum of `used` and `context` over all slots */
	_Atomic uint64_t peak;		/* maximum of `total` since the region was created, without requests */
	_Atomic uint64_t refused;	/* number of allocations refused because of the quota */
};

struct region {
	_Atomic uint64_t magic;		/* written last */
	uint32_t version, size;
	_Atomic uint32_t lock;		/* 0: free. Bit 31: waiters exist. Bits 0-10: slot + 1. Bits 11-30: nonce */
	_Atomic uint32_t slot_limit;	/* this slot and all later ones were never used */
	uint64_t unused;
	_Atomic uint64_t takeovers;	/* number of times that the lock was taken over from a dead process */
	uint64_t reserved[3];
	struct region_gpu gpus[REGION_GPUS];
	struct slot slots[REGION_SLOTS];
};
static_assert(sizeof(struct slot) == 320, "layout 1");
static_assert(sizeof(struct region_gpu) == 48, "layout 1");
static_assert(offsetof(struct region, gpus) == 64, "layout 1");
static_assert(sizeof(struct region) == 64 + 16 * 48 + 1024 * 320, "layout 1");

#endif
