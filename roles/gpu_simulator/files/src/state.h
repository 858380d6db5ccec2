/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The state file: two copies of host_t, and a word that selects the valid one.
 *
 * A change copies the valid copy to the other, modifies that and flips the word, so that a kill at any
 * instruction leaves either the old or the new state. Readers hold a shared file lock, writers an
 * exclusive one. The kernel releases the lock of a dead process.
 */
#ifndef STATE_H
#define STATE_H

#include <stdatomic.h>

#include "functions_enum.h"
#include "host.h"
#include "nvml_abi.h"

enum { STATE_SCHEMA = 9, MAX_FAULTS = 16 };

/* Faults and counts change with every call and must not cost a transaction: they are outside the
 * two copies and change only by single atomic operations. */
typedef struct {
	_Atomic int32_t function;	/* 0: free; else function + 1 (FAULT_ANY + 1: all), written last when arming */
	_Atomic int32_t remaining;	/* calls until it strikes */
	int32_t lasts;			/* it also strikes all later calls, until it is cleared */
	int32_t action;			/* action_t, or a return code */
	int32_t gpu;			/* GPU whose calls count; UNKNOWN: all calls of the function */
} fault_t;

/* Instead of a function: every call on the GPU. */
enum { FAULT_ANY = F_COUNT };

typedef struct {
	fault_t faults[MAX_FAULTS];
	_Atomic uint32_t armed;		/* a hint: no fault is pending when 0 */
	_Atomic uint32_t calls[F_COUNT];
} traffic_t;

/* Maps the state file, again if another file replaced it. DRIVER_NOT_LOADED without one. */
nvmlReturn_t state_open(void);

/* Creates the file without GPUs if it is missing or has another schema, and maps it. */
nvmlReturn_t state_create(void);

const char *state_path(void);

/* Faults and counts of the mapped file; NULL if none is mapped or it is read-only. */
traffic_t *state_traffic(void);

/* The same also for a read-only file, for lasting faults. Only between state_read or state_begin and their end. */
traffic_t *state_faults(void);
bool state_is_writable(void);

/* Between these, the calling thread sees one consistent state. NULL if no file is mapped. */
host_t *state_read(void);
void state_read_end(host_t **host);

/* A transaction; NULL if no file is mapped or it is read-only. Changes of the returned copy take effect
 * with state_commit, or never. */
host_t *state_begin(void);
nvmlReturn_t state_commit(void);
void state_end(host_t **host);		/* discards an uncommitted change */

/* Waits at most timeout_ms until the number of commits differs from *seen, and stores it there. True if it differs. */
bool state_wait(uint32_t *seen, unsigned timeout_ms);

#define READING __attribute__((cleanup(state_read_end)))
#define CHANGING __attribute__((cleanup(state_end)))

/* Set by a fault: the next commit of this thread dies before it becomes visible. */
extern _Thread_local bool state_die_inside;

/* Kills this process, and its parent if this one asked to be killed with it and so is part of the parent's run. */
void state_die(void);

#endif
