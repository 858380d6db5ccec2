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

/* Fills a zeroed host. False with the reason, including the line, if the text is invalid. */
bool configuration_read(const char *text, host_t *host, char reason[REASON_SIZE]);

/* Walks the lines `key value` of a text, skipping comments and empty ones. The value is "" without one.
 * Returns the rest of the text, NULL at its end. */
const char *configuration_line(const char *text, int *number, char key[64], char value[512]);

#endif
