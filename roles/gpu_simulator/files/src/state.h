/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The state file: two copies of host_t, of which one word says which is valid.
 *
 * A change copies the valid one to the other, works there, and flips the word: whoever is killed
 * at any instruction leaves the old state or the new one. Readers hold the file lock shared,
 * writers exclusively; the kernel drops a lock with its holder.
 */
#ifndef STATE_H
#define STATE_H

#include <stdatomic.h>

#include "functions_enum.h"
#include "host.h"
#include "nvml_abi.h"

enum { STATE_SCHEMA = 9, MAX_FAULTS = 16 };

/* Faults and counts change with every call and must not cost a transaction: they live beside the
 * two copies and are touched by single atomic operations only. */
typedef struct {
	_Atomic int32_t function;	/* 0: free; else function + 1 (FAULT_ANY + 1: all), written last when arming */
	_Atomic int32_t remaining;	/* calls until it strikes */
	int32_t lasts;			/* it strikes in each call after that too, until it is cleared */
	int32_t action;			/* action_t, or a return code */
	int32_t gpu;			/* whose calls count; UNKNOWN: all calls of the function */
} fault_t;

/* In place of a function: every call on the GPU. */
enum { FAULT_ANY = F_COUNT };

typedef struct {
	fault_t faults[MAX_FAULTS];
	_Atomic uint32_t armed;		/* a hint: no fault is pending when 0 */
	_Atomic uint32_t calls[F_COUNT];
} traffic_t;

/* Maps the state file, again if another file has taken its name since. DRIVER_NOT_LOADED without one. */
nvmlReturn_t state_open(void);

/* Makes the file if there is none (or one of another schema), with no GPU in it, and maps it. */
nvmlReturn_t state_create(void);

const char *state_path(void);

/* Faults and counts of the mapped file; NULL when none is mapped, or it may only be read. */
traffic_t *state_traffic(void);

/* The same also where the file may only be read, for faults that last. Only between state_read or state_begin and their end. */
traffic_t *state_faults(void);
bool state_is_writable(void);

/* Between these, the calling thread sees one consistent state. NULL when no file is mapped. */
host_t *state_read(void);
void state_read_end(host_t **host);

/* A transaction; NULL when no file is mapped, or it may only be read. What is done to the returned copy
 * happens when state_commit is called, or never. */
host_t *state_begin(void);
nvmlReturn_t state_commit(void);
void state_end(host_t **host);		/* gives an uncommitted change up */

/* Waits until the number of commits is another than *seen, at most timeout_ms, and puts it there; true if it is. */
bool state_wait(uint32_t *seen, unsigned timeout_ms);

#define READING __attribute__((cleanup(state_read_end)))
#define CHANGING __attribute__((cleanup(state_end)))

/* Set by a fault: the next commit of this thread dies before it becomes visible. */
extern _Thread_local bool state_die_inside;

/* Ends this process by SIGKILL, with its parent if this one asked to be killed with it: then it is a part of the parent's run. */
void state_die(void);

#endif
