/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Faults that are triggered by the nth call of a function by any process of the host.
 */
#ifndef FAULT_H
#define FAULT_H

#include "state.h"

/* Faults' actions. If fault_t.action is not negative, it is a return code. */
typedef enum {
	ACTION_RESULT = 0,
	ACTION_NONE = -1,
	ACTION_KILL = -2,
	ACTION_KILL_INSIDE = -3,
	ACTION_KILL_AFTER = -4,
	ACTION_STOP = -5,
} action_t;

/* Returns a function's number by its name (FAULT_ANY for "any"), or -1. */
int function_by_name(const char *name);
const char *function_name(int function);

/* Parses the control interface's action: "kill", "kill-inside", "kill-after", "stop", the name of an NVML error with or
 * without its prefix, or its number. Returns false if the action is unknown. */
bool fault_action_by_name(const char *name, int32_t *action);
const char *fault_action_name(int32_t action, char words[32]);

/* Counts a call of `function` on this GPU, or on any GPU (UNKNOWN), and returns a triggered fault's action.
 * ACTION_RESULT sets *result. In a read-only file, counts nothing, and applies only lasting faults that have already
 * been triggered. */
action_t fault_strikes(traffic_t *traffic, function_t function, int gpu, bool writable, nvmlReturn_t *result);

/* Arms a fault. Returns false if all entries are in use. `action` is an action_t below ACTION_NONE, or a return code.
 * `lasts` means that the nth call and all later ones fail. */
bool fault_arm(traffic_t *traffic, int function, int gpu, int32_t nth, bool lasts, int32_t action);
void fault_clear(traffic_t *traffic);

#endif
