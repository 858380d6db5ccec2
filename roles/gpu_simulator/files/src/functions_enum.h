/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * A number for every exported NVML function (functions.h is generated from functions.txt).
 */
#ifndef FUNCTIONS_ENUM_H
#define FUNCTIONS_ENUM_H

#define FUNCTION(name) F_##name,
typedef enum {
#include "functions.h"
	F_COUNT
} function_t;
#undef FUNCTION

#endif
