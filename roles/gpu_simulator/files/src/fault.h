/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Faults for the nth call of a function by any process of the host.
 */
#ifndef FAULT_H
#define FAULT_H

#include "state.h"

/* Actions of faults. Non-negative numbers in fault_t.action are return codes. */
typedef enum {
	ACTION_RESULT = 0,
	ACTION_NONE = -1,
	ACTION_KILL = -2,
	ACTION_KILL_INSIDE = -3,
	ACTION_KILL_AFTER = -4,
	ACTION_STOP = -5,
} action_t;

/* Number of a function by name (FAULT_ANY: "any"), or -1. */
int function_by_name(const char *name);
const char *function_name(int function);

/* The words of the control interface: "kill", "kill-inside", "kill-after", "stop", an NVML error's name
 * with or without its prefix, or its number. False if unknown. */
bool fault_action_by_name(const char *name, int32_t *action);
const char *fault_action_name(int32_t action, char words[32]);

/* Counts down for a call of `function`, on this GPU or (UNKNOWN) any. ACTION_RESULT sets *result. In a read-only file
 * nothing is counted, and only lasting faults that have started strike. */
action_t fault_strikes(traffic_t *traffic, function_t function, int gpu, bool writable, nvmlReturn_t *result);

/* False if all places are taken. `action`: an action_t below ACTION_NONE, or a return code. `lasts`: the nth call and all later ones. */
bool fault_arm(traffic_t *traffic, int function, int gpu, int32_t nth, bool lasts, int32_t action);
void fault_clear(traffic_t *traffic);

#endif
