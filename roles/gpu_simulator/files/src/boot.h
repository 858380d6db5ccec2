/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Which boot of the host the state belongs to, and what a restart drops.
 */
#ifndef BOOT_H
#define BOOT_H

#include "host.h"
#include "nvml_abi.h"

/* Writes the identity of the running boot. False where it cannot be seen: PID 1 may be hidden from the caller. */
bool boot_identity(char identity[128]);

/* Performs the restart in a state that belongs to another boot than the running one, if that can be seen. */
nvmlReturn_t boot_follow(void);

/* What a restart does to a host; sets its boot to `identity`. */
void boot_restart(host_t *host, const char *identity);

#endif
