/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 */
#ifndef THROTTLE_H
#define THROTTLE_H

/* What throttle.c keeps in a process; all zero at first, and again in a child of fork. */
struct throttle_state { int unused; };

#endif
