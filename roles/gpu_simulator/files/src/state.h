/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The state file. It contains two copies of host_t, and a word that selects the valid copy.
 *
 * A change copies the valid copy to the other one, modifies the other one, and then flips the word. So if a process is
 * killed at any instruction, either the old or the new state is valid. Readers hold a shared file lock, and writers an
 * exclusive one. The kernel releases the lock of a dead process.
 */
#ifndef STATE_H
#define STATE_H

#include <stdatomic.h>

#include "functions_enum.h"
#include "host.h"
#include "nvml_abi.h"

enum { STATE_SCHEMA = 9, MAX_FAULTS = 16 };

/* Faults and counts change with every call and must not need a transaction. So they are outside the two copies, and
 * change only by single atomic operations. */
typedef struct {
	_Atomic int32_t function;	/* 0: free. Otherwise function + 1 (FAULT_ANY + 1: all). Written last when arming */
	_Atomic int32_t remaining;	/* number of calls until the fault is triggered */
	int32_t lasts;			/* whether all later calls fail too, until the fault is cleared */
	int32_t action;			/* action_t, or a return code */
	int32_t gpu;			/* only calls on this GPU count. UNKNOWN: all calls of the function count */
} fault_t;

/* The function of a fault that applies to every call on a GPU. */
enum { FAULT_ANY = F_COUNT };

typedef struct {
	fault_t faults[MAX_FAULTS];
	_Atomic uint32_t armed;		/* a hint: if 0, no fault is pending */
	_Atomic uint32_t calls[F_COUNT];
} traffic_t;

/* Maps the state file. If another file has replaced the state file, maps that file. Returns DRIVER_NOT_LOADED if there
 * is no file. */
nvmlReturn_t state_open(void);

/* Maps the state file. If it is missing or has another schema, first creates a file without GPUs. */
nvmlReturn_t state_create(void);

const char *state_path(void);

/* Returns faults and counts of the mapped file. Returns NULL if no file is mapped or the file is read-only. */
traffic_t *state_traffic(void);

/* Like state_traffic, but also for a read-only file. Lasting faults need this. Call the function only between
 * state_read or state_begin and their end. */
traffic_t *state_faults(void);
bool state_is_writable(void);

/* Returns the state. Until the matching end, the calling thread sees one consistent state. Returns NULL if no file is
 * mapped. */
host_t *state_read(void);
void state_read_end(host_t **host);

/* Starts a transaction. Returns NULL if no file is mapped or the file is read-only. state_commit applies changes of the
 * returned copy. Without state_commit, the changes have no effect. */
host_t *state_begin(void);
nvmlReturn_t state_commit(void);
void state_end(host_t **host);		/* discards an uncommitted change */

/* Waits until the number of commits differs from *seen, at most timeout_ms, and stores the number in *seen. Returns
 * true if it differs. */
bool state_wait(uint32_t *seen, unsigned timeout_ms);

#define READING __attribute__((cleanup(state_read_end)))
#define CHANGING __attribute__((cleanup(state_end)))

/* A fault sets this. This thread's next commit then kills the process, before the change becomes visible. */
extern _Thread_local bool state_die_inside;

/* Kills this process. If this process asked to be killed together with its parent, it is part of the parent's run,
 * and the parent is killed too. */
void state_die(void);

#endif
