/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The words of a seat beside its credit, bounded by what an honest process can have written at that moment.
 */
#ifndef SEAT_WORDS_H
#define SEAT_WORDS_H

#include <stdbool.h>

#include "throttle/credit.h"

/* Whether a mapped file is one that this library knows; a new one is marked as such. */
bool turnstile_adopt(struct turnstile_file *file);
/* Shows the terms to others. */
void turnstile_show(struct seat *s, struct terms terms);
bool turnstile_is_active(const struct seat *s, int64_t now);
bool turnstile_is_waiting(const struct seat *s, int64_t now);
/* Whether the tenant's work on this GPU is late, so that it may be waiting for work on another. */
bool turnstile_is_overdue(const struct seat *s, int64_t now);
/* Whether it has work on this GPU that is not late yet. */
bool turnstile_is_working(const struct seat *s, int64_t now);
/* A tenant says that it wants the GPU, or waits, until then; a later time stays if it is believable. */
void turnstile_set_active(struct seat *s, int64_t now, int64_t until);
void turnstile_set_waiting(struct seat *s, int64_t now, int64_t until);

#endif
