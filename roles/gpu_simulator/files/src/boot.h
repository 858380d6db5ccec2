/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Find out in which boot of the host a state was written, and apply the effects of a restart.
 */
#ifndef BOOT_H
#define BOOT_H

#include "host.h"
#include "nvml_abi.h"

/* Writes the running boot's identity. Returns false if the identity is unknown, because PID 1 may be hidden from the
 * caller. */
bool boot_identity(char identity[128]);

/* If the state is from another boot than the running one, applies a restart to the state. Does nothing if the boot is
 * unknown. */
nvmlReturn_t boot_follow(void);

/* Applies the effects of a restart to a host, and sets its boot to `identity`. */
void boot_restart(host_t *host, const char *identity);

#endif
