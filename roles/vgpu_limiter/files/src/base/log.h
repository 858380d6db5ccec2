/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Lines for an operator.
 */
#ifndef LOG_H
#define LOG_H

#include <syslog.h>

/* One line, at LOG_ERR to LOG_DEBUG. Keeps errno, never waits, drops lines when there are too many. */
void vgpu_log(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
