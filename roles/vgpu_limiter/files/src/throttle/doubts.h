/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Tenants that make others wait longer than their terms allow. They are ignored for a while.
 */
#ifndef DOUBTS_H
#define DOUBTS_H

#include "throttle/claims.h"

/* The tenant of `seat` waits for the lease of `other`, with the claim `own`. */
void turnstile_waits_for(struct turnstile *t, int seat, int other, struct claim own, int64_t now);
/* This tenant yields to `other`, but no tenant has the GPU. False if it has yielded for long enough. */
bool turnstile_yields_to(struct turnstile *t, int other, int64_t now);
/* The tenant had a turn. */
void turnstile_had_turn(struct turnstile *t, int64_t now);

#endif
