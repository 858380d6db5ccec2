# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Describe the GPUs of a node as devices of ResourceSlices. Pure functions.

https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/ and KEP-5075 (consumable capacity).
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Dict, List, Mapping, Sequence

API = "resource.k8s.io/v1"
DRIVER = "gpu.openfleet.io"
#: Capacities of a device. A claim requests memory and smPercent. Each share takes one seat, so that a GPU has no more
#: leases than the limiter supports.
MEMORY, PERCENT, SEAT = "memory", "smPercent", "seats"
_MIB = 1 << 20
#: Maximum number of a slice's devices with capacities (types.go of k8s.io/api/resource/v1).
_MOST_DEVICES = 64
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,50}[a-z0-9])?")


def devices(pool: Mapping[str, Any], shared: bool) -> List[Dict[str, Any]]:
    """Return a device for each GPU with leases, and for each tenant of the layout.

    `pool` is the lease service's answer. If `shared` is false, the cluster lacks the feature DRAConsumableCapacity, so
    that a pod would get a whole GPU. Only tenants are then published.
    """
    gpus = [_gpu(gpu) for gpu in pool["gpus"]] if shared else []
    return [device for device in gpus if device is not None] + [_tenant(tenant) for tenant in pool["tenants"]]


def gpu_device(uuid: str) -> str:
    """Return a GPU's device name."""
    return uuid.lower()


def gpu_uuid(name: str) -> str:
    """Return the UUID of the GPU with this device name.

    Returns "" for any other device.
    """
    return "GPU-" + name[len("gpu-") :] if name.startswith("gpu-") else ""


def tenant_device(name: str) -> str:
    """Return a tenant's device name.

    Device names have no upper case and no dots.
    """
    return "tenant-%s" % (name if _LABEL.fullmatch(name) else hashlib.sha256(name.encode()).hexdigest()[:32])


def size(mib: int) -> str:
    """Return a size in the form in which the API server returns it."""
    number, units = mib, ["Mi", "Gi", "Ti"]
    while number % 1024 == 0 and len(units) > 1:
        number, units = number // 1024, units[1:]
    return "%d%s" % (number, units[0])


def _gpu(gpu: Mapping[str, Any]) -> Any:
    memory_mib = min(gpu["memory_bytes"], gpu["most_memory_bytes"] or gpu["memory_bytes"]) // _MIB
    percent = min(gpu["sm_percent"], gpu["most_sm_percent"] or 100, 100)
    if memory_mib < 1 or percent < 1 or gpu["seats"] < 1:
        # Fixed tenants have the whole GPU.
        return None
    return {
        "name": gpu_device(gpu["uuid"]),
        "allowMultipleAllocations": True,
        "attributes": {"type": {"string": "gpu"}, "uuid": {"string": gpu["uuid"]}},
        "capacity": {
            # Without a request policy, a claim that requests no capacity would take the whole device.
            MEMORY: {
                "value": size(gpu["memory_bytes"] // _MIB),
                "requestPolicy": {
                    "default": "1Mi",
                    "validRange": {"min": "1Mi", "max": size(memory_mib), "step": "1Mi"},
                },
            },
            PERCENT: {
                "value": str(gpu["sm_percent"]),
                "requestPolicy": {"default": "1", "validRange": {"min": "1", "max": str(percent), "step": "1"}},
            },
            SEAT: {
                "value": str(gpu["seats"]),
                "requestPolicy": {"default": "1", "validValues": ["1"]},
            },
        },
    }


def _tenant(tenant: Mapping[str, Any]) -> Dict[str, Any]:
    return {
        "name": tenant_device(tenant["name"]),
        "attributes": {"type": {"string": "tenant"}, "tenant": {"string": tenant["name"]}},
        "capacity": {
            MEMORY: {"value": size(tenant["memory_bytes"] // _MIB)},
            PERCENT: {"value": str(tenant["sm_percent"])},
        },
    }


def slices(node: str, node_uid: str, published: Sequence[Mapping[str, Any]], generation: int) -> List[Dict[str, Any]]:
    """Return a node's ResourceSlices with these devices."""
    chunks = [published[start : start + _MOST_DEVICES] for start in range(0, len(published), _MOST_DEVICES)] or [[]]
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid, "controller": True}
    return [
        {
            "apiVersion": API,
            "kind": "ResourceSlice",
            "metadata": {"name": "%s-%s-%d" % (node, DRIVER, number), "ownerReferences": [owner]},
            "spec": {
                "driver": DRIVER,
                "nodeName": node,
                "pool": {"name": node, "generation": generation, "resourceSliceCount": len(chunks)},
                "devices": list(chunk),
            },
        }
        for number, chunk in enumerate(chunks)
    ]


def keeps_shares(answer: Mapping[str, Any]) -> bool:
    """Return whether the API server supports shares of a device.

    Without the feature gate, it drops `allowMultipleAllocations`.
    """
    return any(device.get("allowMultipleAllocations") for device in answer["spec"].get("devices") or ())


def same(desired: Sequence[Mapping[str, Any]], current: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the current slices have the same devices as the desired ones."""
    by_name = {item["metadata"]["name"]: item for item in current}
    if set(by_name) != {item["metadata"]["name"] for item in desired}:
        return False
    generations = {item["spec"]["pool"]["generation"] for item in current}
    return len(generations) == 1 and all(
        item["spec"]["devices"] == (by_name[item["metadata"]["name"]]["spec"].get("devices") or []) for item in desired
    )


def newest(current: Sequence[Mapping[str, Any]]) -> int:
    """Return the slices' highest generation."""
    return max((int(item["spec"]["pool"]["generation"]) for item in current), default=0)
