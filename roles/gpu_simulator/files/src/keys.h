/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Keys of the configuration (described in gpusim.h). There is one table for each section. The parser, gpusimSet and
 * gpusimDump use these tables.
 */
#ifndef KEYS_H
#define KEYS_H

#include <stddef.h>

#include "host.h"

typedef enum { KEY_INTEGER, KEY_TEXT, KEY_SPANS, KEY_PEERS, KEY_CLOCKS } key_kind_t;

enum { MAX_KEYS = 96 };	/* per section */

/* Whether a key is optional, mandatory, or optional and changeable later with gpusimSet. */
enum { OPTIONAL = 0, MANDATORY = 1, ADJUSTABLE = 2 };

typedef struct {
	const char *name;
	key_kind_t kind;
	int flags;
	size_t offset, size;
	int64_t initial;	/* value if the integer is omitted */
} config_key_t;

typedef struct {
	const char *name;
	const config_key_t *keys;
	size_t count;
} section_t;

extern const section_t SECTION_HOST, SECTION_GPU, SECTION_GI_PROFILE, SECTION_CI_PROFILE;

const config_key_t *key_by_name(const section_t *section, const char *name);

/* Sets every member to its default. */
void key_defaults(const section_t *section, void *object);

/* Stores the text of a value. Returns NULL or the error. */
const char *key_store(const config_key_t *key, void *object, const char *text);

/* Parses a whole decimal or 0x number. */
bool key_parse_integer(const char *text, int64_t *number);

#endif
