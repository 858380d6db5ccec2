/* Copyright: (c) openfleet.gpu contributors
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Use GPU memory on request.
 *
 *   client fill STEP_MIB [GPU]   allocates memory in steps until the driver refuses; prints the allocated MiB and the error
 *   client info [GPU]            prints free and total memory in MiB
 *   client serve FILE [GPU]      reads requests from the pipe FILE.in, and writes to FILE.out: the error for `alloc MIB`,
 *                                the same as above for `info`
 */
#include "cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

CUresult cuInit(unsigned int);
CUresult cuDeviceGet(CUdevice *, int);
CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuMemGetInfo_v2(size_t *, size_t *);

#define MIB ((size_t)1 << 20)

static void must(CUresult result, const char *what)
{
    if (result) {
        fprintf(stderr, "client: %s: error %d\n", what, result);
        exit(1);
    }
}

static CUresult alloc(size_t mib)
{
    CUdeviceptr pointer;
    return cuMemAlloc_v2(&pointer, mib * MIB);
}

static void info(FILE *to)
{
    size_t there, all;
    must(cuMemGetInfo_v2(&there, &all), "cuMemGetInfo");
    fprintf(to, "%zu %zu\n", there / MIB, all / MIB);
}

static void serve(const char *file)
{
    char name[4096], line[128];
    snprintf(name, sizeof name, "%s.out", file);
    FILE *out = fopen(name, "w");
    snprintf(name, sizeof name, "%s.in", file);
    mkfifo(name, 0666);
    if (!out)
        exit(1);
    for (;;) {
        FILE *in = fopen(name, "r");
        while (in && fgets(line, sizeof line, in)) {
            if (!strncmp(line, "alloc ", 6))
                fprintf(out, "%d\n", alloc(strtoull(line + 6, NULL, 10)));
            else
                info(out);
            fflush(out);
        }
        if (!in)
            exit(1);
        fclose(in);
    }
}

int main(int count, char **words)
{
    CUdevice device;
    CUcontext context;
    if (count < 2)
        return 2;
    int with_word = strcmp(words[1], "info") != 0;
    if (count < 2 + with_word)
        return 2;
    must(cuInit(0), "cuInit");
    must(cuDeviceGet(&device, count > 2 + with_word ? atoi(words[2 + with_word]) : 0), "cuDeviceGet");
    must(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    if (!strcmp(words[1], "info")) {
        info(stdout);
    } else if (!strcmp(words[1], "serve")) {
        serve(words[2]);
    } else {
        size_t step = strtoull(words[2], NULL, 10), held = 0;
        CUresult result;
        while (step && !(result = alloc(step)))
            held += step;
        printf("%zu %d\n", held, result);
    }
    return 0;
}
