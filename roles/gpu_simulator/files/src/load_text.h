/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Reads the text of a load (described in gpusim.h) and keeps the host's samples.
 */
#ifndef LOAD_TEXT_H
#define LOAD_TEXT_H

#include "configuration.h"
#include "host.h"
#include "nvml_abi.h"

/* Fills a load that starts now; its samples go to the host. On failure `reason` is set. */
nvmlReturn_t load_read(const char *text, host_t *host, int64_t room_mib, load_t *load, char reason[REASON_SIZE]);

/* Closes gaps of removed loads among the samples. */
void load_forget_unused_samples(host_t *host);

#endif
