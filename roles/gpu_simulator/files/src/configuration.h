/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Reads the text of a host's configuration (described in gpusim.h).
 */
#ifndef CONFIGURATION_H
#define CONFIGURATION_H

#include "host.h"

enum { REASON_SIZE = 256 };

/* Fills a zeroed host. If the text is invalid, returns false, and `reason` contains the line. */
bool configuration_read(const char *text, host_t *host, char reason[REASON_SIZE]);

/* Reads a text's next line `key value`. Skips comments and empty lines. If a line has no value, the value is "".
 * Returns the rest of the text, or NULL at its end. */
const char *configuration_line(const char *text, int *number, char key[64], char value[512]);

#endif
