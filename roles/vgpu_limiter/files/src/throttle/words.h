/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Fields of a seat except its credit. Values are limited to what an honest process can have written at that moment.
 */
#ifndef SEAT_WORDS_H
#define SEAT_WORDS_H

#include <stdbool.h>

#include "throttle/credit.h"

/* Return whether a mapped file has a known format. Initializes a new file first. */
bool turnstile_adopt(struct turnstile_file *file);
/* Publish the terms in the seat. */
void turnstile_show(struct seat *s, struct terms terms);
bool turnstile_is_active(const struct seat *s, int64_t now);
bool turnstile_is_waiting(const struct seat *s, int64_t now);
/* Return whether the tenant's work on this GPU is late. Late work may be waiting for another GPU. */
bool turnstile_is_overdue(const struct seat *s, int64_t now);
/* Return whether the tenant has work on this GPU that is not late. */
bool turnstile_is_working(const struct seat *s, int64_t now);
/* Mark until when a tenant wants the GPU or waits for it. A later plausible mark stays. */
void turnstile_set_active(struct seat *s, int64_t now, int64_t until);
void turnstile_set_waiting(struct seat *s, int64_t now, int64_t until);

#endif
