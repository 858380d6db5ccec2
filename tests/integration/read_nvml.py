# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Print the MIG instances that NVML reports, as JSON, with plain pynvml.

The format is {GPU index: [[profile name, placement start], ...]}.
"""

import ctypes
import json

import pynvml as n

n.nvmlInit()
found = {}
for index in range(n.nvmlDeviceGetCount()):
    device = n.nvmlDeviceGetHandleByIndex(index)
    found[index] = []
    try:
        mode = n.nvmlDeviceGetMigMode(device)[0]
    except n.NVMLError_NotSupported:
        continue
    if not mode:
        continue
    for profile in range(n.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            info = n.nvmlDeviceGetGpuInstanceProfileInfo(device, profile)
        except (n.NVMLError_NotSupported, n.NVMLError_InvalidArgument):
            continue
        handles, count = (n.c_nvmlGpuInstance_t * 16)(), ctypes.c_uint(16)
        n.nvmlDeviceGetGpuInstances(device, info.id, handles, ctypes.byref(count))
        for handle in handles[: count.value]:
            start = n.nvmlGpuInstanceGetInfo(handle).placement.start
            found[index].append([info.name.replace("MIG ", ""), start])
    found[index].sort(key=lambda pair: pair[1])
print(json.dumps(found))
