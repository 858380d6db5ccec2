# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Create a foreign MIG instance with plain pynvml.

Usage: make_instance.py GPU PROFILE START. The program enables MIG mode if necessary.
"""

import sys
from ctypes import byref

import pynvml as n

gpu, name, start = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
n.nvmlInit()
device = n.nvmlDeviceGetHandleByIndex(gpu)
if not n.nvmlDeviceGetMigMode(device)[0]:
    n.nvmlDeviceSetMigMode(device, 1)
for enum in range(n.NVML_GPU_INSTANCE_PROFILE_COUNT):
    try:
        info = n.nvmlDeviceGetGpuInstanceProfileInfo(device, enum)
    except n.NVMLError:
        continue
    if info.name == "MIG " + name:
        placements, count = (n.c_nvmlGpuInstancePlacement_t * 16)(), n.c_uint(16)
        n.nvmlDeviceGetGpuInstancePossiblePlacements(device, info.id, placements, byref(count))
        place = next(p for p in placements[: count.value] if p.start == start)
        instance = n.nvmlDeviceCreateGpuInstanceWithPlacement(device, info.id, byref(place))
        whole = max(
            (
                n.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, e, 0)
                for e in (0, 1, 2, 3, 4)
                if e < info.sliceCount
            ),
            key=lambda p: p.sliceCount,
        )
        n.nvmlGpuInstanceCreateComputeInstance(instance, whole.id)
        break
else:
    sys.exit(f"no profile {name}")
