/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Log lines for operators.
 */
#ifndef LOG_H
#define LOG_H

#include <syslog.h>

/* Log one line, from LOG_ERR to LOG_DEBUG. Keeps errno, never waits, and drops lines above the limit. */
void vgpu_log(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
