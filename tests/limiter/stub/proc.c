/* Copyright: (c) openfleet.gpu contributors
 * SPDX-License-Identifier: Apache-2.0
 *
 * cuGetProcAddress as in the Driver API reference. It returns the newest variant of a function that the requested CUDA
 * version has. If the per-thread variant is requested and exists, it returns this variant, and otherwise the legacy
 * variant. For unknown names, it returns CUDA_SUCCESS and NULL.
 */
#define _GNU_SOURCE
#include "stub.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct row {
    const char *name;
    int version;
    bool per_thread;
    void *function, *alias;
};

/* The table of functions by symbol. It does not contain their types. */
#define SYMBOL(symbol) extern char at_##symbol[] __asm__(#symbol), alias_##symbol[];
#include "symbols.inc"
#undef SYMBOL

static const struct row rows[] = {
#define ROW(name, version, per_thread, symbol) {name, version, per_thread, at_##symbol, alias_##symbol},
#include "rows.inc"
#undef ROW
};

static bool aliases;

__attribute__((constructor)) static void settings(void)
{
    aliases = stub_setting("STUB_ALIASES", 0);
}

static void record(const char *name, int version, uint64_t flags)
{
    const char *path = getenv("STUB_REQUESTS");
    if (!path || !*path)
        return;
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (file < 0)
        return;
    char line[160];
    int length = snprintf(line, sizeof line, "%s %d %llu\n", name, version, (unsigned long long)flags);
    if (write(file, line, (size_t)length) != length)
        fprintf(stderr, "stub: cannot write to %s\n", path);
    close(file);
}

void *stub_symbol(const char *name, int version, uint64_t flags, int *status)
{
    const struct row *best = NULL;
    bool known = false;
    for (const struct row *row = rows; row < rows + sizeof rows / sizeof *rows; row++) {
        if (strcmp(row->name, name))
            continue;
        known = true;
        if (row->version > version || (row->per_thread && !(flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)))
            continue;
        if (!best || row->per_thread > best->per_thread || (row->per_thread == best->per_thread && row->version > best->version))
            best = row;
    }
    *status = best ? CU_GET_PROC_ADDRESS_SUCCESS : known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return !best ? NULL : aliases ? best->alias : best->function;
}

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, CUdriverProcAddressQueryResult *status)
{
    if (!name || !function || flags > 3)
        return CUDA_ERROR_INVALID_VALUE;
    record(name, version, flags);
    int found;
    *function = NULL;
    if (version > (int)stub_setting("STUB_DRIVER_VERSION", 13000))
        return CUDA_ERROR_INVALID_VALUE;
    *function = stub_symbol(name, version, flags, &found);
    if (status)
        *status = found;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags)
{
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
