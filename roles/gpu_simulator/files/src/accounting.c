/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * Process accounting, which is disabled and cannot be enabled: nvidia-smi -q -x of T4, A100 and H100 shows it disabled, with
 * a capacity of 4000 processes (github.com/NVIDIA/k8s-test-infra tests/e2e/go/assertions/nvidiasmi/testdata/hardware).
 */
#include "call.h"

enum { ACCOUNTING_ROOM = 4000 };

nvmlReturn_t nvmlDeviceGetAccountingMode(nvmlDevice_t device, unsigned *mode)
{
	QUERY_GPU(nvmlDeviceGetAccountingMode);
	return give(mode, 0);
}

nvmlReturn_t nvmlDeviceGetAccountingBufferSize(nvmlDevice_t device, unsigned *size)
{
	QUERY_GPU(nvmlDeviceGetAccountingBufferSize);
	return give(size, ACCOUNTING_ROOM);
}

nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned *count, unsigned *pids)
{
	QUERY_GPU(nvmlDeviceGetAccountingPids);
	return count ? give_list(count, 0, pids) : NVML_ERROR_INVALID_ARGUMENT;
}
