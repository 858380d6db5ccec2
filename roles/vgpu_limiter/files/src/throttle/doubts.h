/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Ignore tenants for a while if they make others wait longer than their terms allow.
 */
#ifndef DOUBTS_H
#define DOUBTS_H

#include "throttle/claims.h"

/* Record that the tenant of `seat`, with the claim `own`, waits for the lease of `other`. */
void turnstile_waits_for(struct turnstile *t, int seat, int other, struct claim own, int64_t now);
/* Record that this tenant yields to `other` although no tenant has the GPU. Return false if it has yielded for long
 * enough. */
bool turnstile_yields_to(struct turnstile *t, int other, int64_t now);
/* Record that this tenant had a turn. */
void turnstile_had_turn(struct turnstile *t, int64_t now);

#endif
