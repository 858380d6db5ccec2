/* Copyright: (c) openfleet.gpu contributors
 * SPDX-License-Identifier: Apache-2.0
 *
 * This file replaces gpu.c if the stub is built without gpu.c. Only default streams exist, and nothing takes time.
 */
#include "stub.h"

__attribute__((weak)) int stub_stream_gpu(CUstream stream)
{
    (void)stream;
    return stub_current_gpu();
}

__attribute__((weak)) CUgraph stub_stream_graph(CUstream stream)
{
    (void)stream;
    return NULL;
}

__attribute__((weak)) uint64_t stub_kernel_nanoseconds(CUfunction function)
{
    (void)function;
    return 0;
}

__attribute__((weak)) void stub_gpu_wait(int gpu)
{
    stub_pools_settle(gpu);
}
