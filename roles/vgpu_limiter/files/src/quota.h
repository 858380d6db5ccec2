/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The tenant's quota file, /etc/openfleet-gpu/vgpu/NAME/quota. Lines of words; # begins a comment:
 *
 *   version 1
 *   tenant notebook-b
 *   counted_as notebook-a       where the tenant was renamed; the name under `tenant` without the line
 *   policy fixed                fixed | contended | burst
 *   priority 0
 *   managed counted             counted | oversubscribed: whether managed memory counts; counted without the line
 *   gpu GPU-UUID memory BYTES sm PERCENT seat NUMBER
 *
 * Unknown keys are passed over with a line in the log. A file that cannot be understood, or that
 * somebody but root could have written, changes nothing: the quota that was read before still holds.
 * Where none was, a process whose quota folder is mounted is refused all memory, and others are not limited.
 */
#ifndef QUOTA_H
#define QUOTA_H

#include "internal.h"

#define LOOK_EVERY_NS INT64_C(1000000000)

/* Understands `text` (which it cuts into words). NULL, or what is wrong and in which line. */
const char *quota_parse(struct quota *, char *text, const char *tenant, int *line);
/* "GPU-..." or "MIG-..." with 32 hexadecimal digits. */
bool quota_parse_uuid(CUuuid *, const char *);
/* Reads the file if it is another one than at the last time. The caller holds state->starting. */
void quota_read(struct state *);

/* Until a quota is read nothing is allocated on any GPU. */
void quota_refuse_all(struct state *);

#endif
