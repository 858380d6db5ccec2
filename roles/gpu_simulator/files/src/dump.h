/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The whole state as JSON.
 */
#ifndef DUMP_H
#define DUMP_H

#include <stdio.h>

#include "state.h"

void dump_host(FILE *out, const host_t *host, traffic_t *traffic);

#endif
