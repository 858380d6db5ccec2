/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Events of GPUs, from the host's state to the event sets of all clients.
 */
#ifndef EVENTS_H
#define EVENTS_H

#include "host.h"

/* Appends an event to the host's events. If there are too many, drops the oldest one. Runs inside the caller's
 * transaction. */
void events_raise(host_t *host, event_t event);

#endif
