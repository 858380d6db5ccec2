/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Parser of quota files. The parser avoids strtoull and sscanf, because newer headers map them to functions that older
 * C libraries lack. Containers may have an older C library than the build host.
 */
#include "formats/quota.h"

#include <string.h>

#include "formats/turnstile.h"

static bool parse_number(uint64_t *number, const char *text, uint64_t most)
{
	if (!text || !*text)
		return false;
	for (*number = 0; *text; text++) {
		if (*text < '0' || *text > '9' || *number > (UINT64_MAX - 9) / 10)
			return false;
		*number = *number * 10 + (uint64_t)(*text - '0');
	}
	return *number <= most;
}

static int hexadecimal(char digit)
{
	if (digit >= '0' && digit <= '9')
		return digit - '0';
	if (digit >= 'a' && digit <= 'f')
		return digit - 'a' + 10;
	if (digit >= 'A' && digit <= 'F')
		return digit - 'A' + 10;
	return -1;
}

bool quota_parse_uuid(CUuuid *uuid, const char *text)
{
	if (strncmp(text, "GPU-", 4) != 0 && strncmp(text, "MIG-", 4) != 0)
		return false;
	int digits = 0;
	for (text += 4; *text; text++) {
		if (*text == '-')
			continue;
		int value = hexadecimal(*text);
		if (value < 0 || digits == 32)
			return false;
		unsigned char *byte = &uuid->bytes[digits / 2];
		*byte = digits % 2 ? (unsigned char)(*byte << 4 | value) : (unsigned char)value;
		digits++;
	}
	return digits == 32;
}

static const char *parse_gpu(struct quota *quota, char **rest, quota_unknown *unknown)
{
	char *name = strtok_r(NULL, " \t\r", rest), *key;
	if (quota->gpu_count == QUOTA_GPUS)
		return "more than 16 GPUs";
	struct quota_gpu gpu = { .sm_percent = 100, .seat = -1, .region = -1 };
	if (!name || strlen(name) >= sizeof gpu.name || !quota_parse_uuid(&gpu.uuid, name))
		return "a GPU must be given by UUID, GPU-...";
	strcpy(gpu.name, name);
	for (int i = 0; i < quota->gpu_count; i++)
		if (memcmp(&quota->gpus[i].uuid, &gpu.uuid, sizeof gpu.uuid) == 0)
			return "a GPU is listed twice";
	bool has_memory = false;
	while ((key = strtok_r(NULL, " \t\r", rest))) {
		char *value = strtok_r(NULL, " \t\r", rest);
		uint64_t number;
		if (strcmp(key, "memory") == 0) {
			if (!parse_number(&gpu.memory_bytes, value, UINT64_MAX))
				return "memory must be a number of bytes";
			has_memory = true;
		} else if (strcmp(key, "sm") == 0) {
			if (!parse_number(&number, value, 100) || number == 0)
				return "sm must be a percentage from 1 to 100";
			gpu.sm_percent = (int)number;
		} else if (strcmp(key, "seat") == 0) {
			if (!parse_number(&number, value, TURNSTILE_SEATS - 1))
				return "seat must be a number from 0 to 63";
			gpu.seat = (int)number;
		} else {
			unknown(quota->tenant, key);
		}
	}
	if (!has_memory)
		return "a gpu requires `memory` (0: not limited here)";
	if (gpu.sm_percent < 100 && gpu.seat < 0)
		return "a gpu with `sm` below 100 requires a `seat`";
	quota->gpus[quota->gpu_count++] = gpu;
	return NULL;
}

bool quota_is_name(const char *name)
{
	return *name && *name != '.' && strlen(name) < TENANT_NAME
		&& !name[strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")];
}

static const char *parse_line(struct quota *quota, char *line, bool *has_version, quota_unknown *unknown)
{
	char *rest, *key = strtok_r(line, " \t\r", &rest);
	if (!key)
		return NULL;
	if (strcmp(key, "gpu") == 0)
		return parse_gpu(quota, &rest, unknown);
	char *value = strtok_r(NULL, " \t\r", &rest);
	uint64_t number;
	if (!value)
		return "a key without a value";
	if (strcmp(key, "version") == 0) {
		*has_version = true;
		return strcmp(value, "1") == 0 ? NULL : "this library does not support this version";
	}
	if (strcmp(key, "tenant") == 0)
		return strcmp(value, quota->tenant) == 0 ? NULL : "it is another tenant's";
	if (strcmp(key, "counted_as") == 0) {
		if (!quota_is_name(value))
			return "counted_as must be a name (letters, digits, . _ -)";
		strcpy(quota->counted_as, value);
		return NULL;
	}
	if (strcmp(key, "policy") == 0) {
		static const char *const names[] = { [POLICY_FIXED] = "fixed", [POLICY_CONTENDED] = "contended", [POLICY_BURST] = "burst",
			[POLICY_COLOCATE] = "colocate" };
		for (quota->policy = 0; quota->policy <= POLICY_COLOCATE; quota->policy++)
			if (strcmp(value, names[quota->policy]) == 0)
				return NULL;
		return "policy must be fixed, contended, burst or colocate";
	}
	if (strcmp(key, "priority") == 0) {
		bool negative = *value == '-';
		if (!parse_number(&number, value + negative, INT32_MAX))
			return "priority must be a whole number";
		quota->priority = negative ? -(int)number : (int)number;
		return NULL;
	}
	if (strcmp(key, "waterline") == 0) {
		if (!parse_number(&number, value, 100) || number == 0)
			return "waterline must be a percentage from 1 to 100";
		quota->waterline = (int)number;
		return NULL;
	}
	if (strcmp(key, "managed") == 0) {
		quota->managed_oversubscribed = strcmp(value, "oversubscribed") == 0;
		return quota->managed_oversubscribed || strcmp(value, "counted") == 0 ? NULL : "managed must be counted or oversubscribed";
	}
	unknown(quota->tenant, key);
	return NULL;
}

const char *quota_parse(struct quota *quota, char *text, const char *tenant, int *line_number, quota_unknown *unknown)
{
	*quota = (struct quota){ .policy = POLICY_FIXED, .waterline = 100 };
	strcpy(quota->tenant, tenant);
	strcpy(quota->counted_as, tenant);
	bool has_version = false;
	*line_number = 0;
	for (char *line = text, *next; line; line = next) {
		++*line_number;
		next = strchr(line, '\n');
		if (next)
			*next++ = '\0';
		line[strcspn(line, "#")] = '\0';
		const char *wrong = parse_line(quota, line, &has_version, unknown);
		if (wrong)
			return wrong;
	}
	for (int i = 0; quota->policy == POLICY_COLOCATE && i < quota->gpu_count; i++)
		if (quota->gpus[i].seat < 0)
			return "policy colocate requires a `seat` on each gpu";
	return has_version ? NULL : "the line `version 1` is missing";
}
