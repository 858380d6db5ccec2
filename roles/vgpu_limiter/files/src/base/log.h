/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Log lines for operators.
 */
#ifndef LOG_H
#define LOG_H

#include <syslog.h>

/* Log one line at a level from LOG_ERR to LOG_DEBUG. Preserves errno and never waits. Lines above the rate limit are
 * dropped. */
void vgpu_log(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
