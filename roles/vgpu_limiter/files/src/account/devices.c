/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * UUIDs of devices, read once per device.
 */
#include "account/devices.h"

#include <string.h>

#include "driver/reals.h"

enum { UNKNOWN, KNOWN };

static bool uuid_of_device(struct account *account, CUdevice device, CUuuid *uuid)
{
	if (device < 0 || device >= DEVICES)
		return false;
	if (atomic_load_explicit(&account->device_known[device], memory_order_acquire) == KNOWN) {
		*uuid = account->device_uuid[device];
		return true;
	}
	/* cuDeviceGetUuid_v2 returns the MIG device's UUID, and cuDeviceGetUuid its GPU's UUID. */
	if ((HAVE(cuDeviceGetUuid_v2) ? REAL(cuDeviceGetUuid_v2)(uuid, device) : REAL(cuDeviceGetUuid)(uuid, device)) != CUDA_SUCCESS)
		return false;
	mutex_lock(&account->tables.lock);
	if (atomic_load_explicit(&account->device_known[device], memory_order_relaxed) == UNKNOWN) {
		account->device_uuid[device] = *uuid;
		atomic_store_explicit(&account->device_known[device], KNOWN, memory_order_release);
	}
	mutex_unlock(&account->tables.lock);
	return true;
}

int device_in_quota(struct account *account, const struct quota *quota, CUdevice device)
{
	CUuuid uuid;
	if (!quota || !uuid_of_device(account, device, &uuid))
		return -1;
	for (int i = 0; i < quota->gpu_count; i++)
		if (memcmp(&quota->gpus[i].uuid, &uuid, sizeof uuid) == 0)
			return i;
	return -1;
}
