/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Parse the text of a load (described in gpusim.h), and store its samples in the host.
 */
#ifndef LOAD_TEXT_H
#define LOAD_TEXT_H

#include "configuration.h"
#include "host.h"
#include "nvml_abi.h"

/* Fills a load that starts now, and stores its samples in the host. On failure, writes the reason to `reason`. */
nvmlReturn_t load_read(const char *text, host_t *host, int64_t room_mib, load_t *load, char reason[REASON_SIZE]);

/* Deletes the samples of removed loads, so that the remaining samples have no gaps. */
void load_forget_unused_samples(host_t *host);

#endif
