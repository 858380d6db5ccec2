/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The table of processes that use GPUs.
 */
#ifndef PROCESS_H
#define PROCESS_H

#include "handle.h"
#include "host.h"

/* Returns a process's start time in clock ticks since boot, or 0 if the process does not exist or is dead. */
uint64_t process_start_ticks(int pid);

bool process_is_alive(const process_t *process);

/* Returns whether a live process uses the GPU, the GPU instance or the compute instance (-1: any). */
bool process_uses(const host_t *host, int gpu, int gi, int ci);

/* Returns the memory that live processes use on a GPU (gi -1) or in a GPU instance. */
int64_t process_memory_bytes(const host_t *host, int gpu, int gi);

/* Frees the entries of dead processes. */
void process_forget_dead(host_t *host);

/* Returns the path of the process's program, or the process's name if the program is hidden. Returns false if the
 * process does not exist. */
bool process_name(int pid, char *out, size_t length);

/* Returns whether the process belongs to the target's list. The target is a whole GPU or one compute instance. */
bool process_is_on(const process_t *process, const target_t *target);
/* Returns whether the list of this type (process_type_t) contains the process. */
bool process_is_listed(const process_t *process, int type);

/* Returns the type for a word of the control interface, or -1. */
int process_type_by_name(const char *name);
const char *process_type_name(int type);

#endif
