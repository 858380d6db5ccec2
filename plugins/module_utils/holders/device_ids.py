# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Map device ids in Kubernetes to GPUs and GPU instances.

Each device plugin and each DRA driver has its own format:

- UUID, UUID::N for a replica (NVIDIA/k8s-device-plugin, internal/rm);
- UUID-N (Project-HAMi/HAMi, nvinternal/rm), UUID-memory-N and UUID-core-N (Project-HAMi/volcano-vgpu-device-plugin,
  pkg/plugin), UUID-_-N (AliyunContainerService/gpushare-device-plugin);
- nvidiaM and nvidiaM/giG, each with the suffix /vgpuN for a replica (GoogleCloudPlatform/container-engine-accelerators,
  pkg/gpu/nvidia);
- I-N, where I is the index in NVML (volcano-sh/devices);
- gpu-M, gpu-M-mig-PROFILE-ID-START, gpu-vfio-N (NVIDIA/k8s-dra-driver-gpu, cmd/gpu-kubelet-plugin);
- a PCI address, an IOMMU group or the UUID of a mediated device (NVIDIA/kubevirt-gpu-device-plugin, KubeVirt).
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Callable

from ..model import Gpu, Host
from .devices import GPU, Devices, Place
from .model import place_of

# The pattern for old MIG UUIDs (MIG-GPU-…/GI/CI) comes first, because such a UUID contains its GPU's UUID.
_UUID = re.compile(r"(?<![0-9A-Za-z])(?:MIG-GPU-[0-9A-Za-z-]+/\d+/\d+|(?:MIG|GPU)-[0-9A-Za-z-]+)")
_PCI = re.compile(r"(?:[0-9a-f]{4})?([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", re.IGNORECASE)
_MEDIATED = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_NODE = re.compile(r"nvidia(\d{1,4})(?:/gi(\d{1,4}))?(?:/vgpu\d+)?")
_INDEX = re.compile(r"(\d{1,4})-\d+")
_CLAIMED = re.compile(r"(?:.*-)?gpu-(\d{1,4})(?:-mig-(.+))?")
_CLAIMED_PASSTHROUGH = re.compile(r"(?:.*-)?gpu-vfio-\d+")
# The part after "mig-" in device names of NVIDIA's DRA driver. The pattern's group is START, the first memory slice:
# gpu-M-mig-PROFILE-ID-START, or gpu-M-mig-ID-START-SIZE before release 25.12.
_START, _START_BEFORE = re.compile(r".*[a-z].*-\d+-(\d{1,2})"), re.compile(r"\d+-(\d{1,2})-\d+")

_GPU_WORD = re.compile(r"(?<![a-z])(?:v|p|x)?(?:gpu|cuda)|(?<![a-z])(?:mig|mps)(?![a-z])")
_NOT_GPU_WORD = re.compile(
    r"(?<![a-z])(?:rdma|sriov|hostdev|nics?|hca|roce|infiniband|ib|eth|net|mlnx\w*|bf\d*|dpu|doca|imex|compute-domain)(?![a-z])"
)
# Resource domains of other GPU vendors.
_OTHER_VENDORS = (
    *("amd.com", "intel.com", "huawei.com", "hygon.com", "cambricon.com", "metax-tech.com", "mthreads.com"),
    *("enflame.com", "iluvatar.ai", "iluvatar.com", "birentech.com", "kunlunxin.com", "vastaitech.com", "qualcomm.com"),
)


def may_be_gpu(name: str) -> bool:
    """Return whether this resource or DRA driver may have NVIDIA GPUs, by its name."""
    name = name.lower()
    domain = name.partition("/")[0]
    if _of(domain, _OTHER_VENDORS):
        return False
    if _of(domain, ("nvidia.com",)):
        return not _NOT_GPU_WORD.search(name)
    return bool(_GPU_WORD.search(name))


def named_exactly(host: Host, text: str, sys: str = "/sys") -> set[Place] | None:
    """Return the GPUs and instances for the UUIDs or the PCI address in a text.

    Does not need the resource's name. Returns an empty set if the host does not have the device, and None if the text
    has neither a UUID nor a PCI address.
    """
    names = _UUID.findall(text)
    if names:
        return without_parents({place for place in (_place(host, name) for name in names) if place})
    address = _PCI.fullmatch(text)
    return _at(host, Path(sys, "bus/pci/devices", address.group(1).lower())) if address else None


def named(host: Host, devices: Devices, device: str, resource: str, sys: str = "/sys") -> set[Place] | None:
    """Return the GPUs and instances for a device id.

    `resource` is the name of the resource or DRA driver. If it cannot be for GPUs, only UUIDs and PCI addresses are
    recognized. Returns an empty set if the host does not have the device, and None if the format is unknown.
    """
    exact = named_exactly(host, device, sys)
    if exact is not None or not may_be_gpu(resource):
        return exact or set()
    for form, places in _FORMS:
        match = form.fullmatch(device)
        if match:
            return places(host, devices, match)
    if _INDEX.fullmatch(device) and resource.startswith("volcano.sh/"):
        index = int(device.partition("-")[0])
        return {(gpu.uuid, None) for gpu in host.gpus if gpu.index == index}
    if _MEDIATED.fullmatch(device) and Path(sys, "bus/mdev/devices", device).exists():
        return _at(host, Path(sys, "bus/mdev/devices", device))
    group = Path(sys, "kernel/iommu_groups", device, "devices")
    if device.isdecimal() and group.is_dir():
        return {place for name in os.listdir(group) for place in _at(host, Path(sys, "bus/pci/devices", name))}  # noqa: PTH208
    return None


def mentioned(host: Host, text: str) -> set[Place]:
    """Return this host's GPUs and instances whose UUIDs occur in a text.

    The text may be a device plugin's answer.
    """
    places: set[Place] = set()
    for gpu in host.gpus:
        if re.search(r"(?<!MIG-)%s(?![0-9A-Za-z])" % re.escape(gpu.uuid), text):
            places.add((gpu.uuid, None))
        for instance in gpu.mig.instances:
            for compute in instance.compute_instances:
                old = "MIG-%s/%d/%d" % (gpu.uuid, instance.id, compute.id)
                names = "|".join(re.escape(name) for name in (compute.mig_uuid, old) if name)
                if re.search(r"(?:%s)(?![0-9A-Za-z])" % names, text):
                    places.add((gpu.uuid, instance.id))
    return without_parents(places)


def without_parents(places: set[Place]) -> set[Place]:
    """Remove each whole GPU that has an instance in `places` too."""
    inside = {uuid for uuid, instance in places if instance is not None}
    return {place for place in places if place[1] is not None or place[0] not in inside}


def _of(domain: str, owners: tuple[str, ...]) -> bool:
    return any(domain == owner or domain.endswith("." + owner) for owner in owners)


def _place(host: Host, name: str) -> Place | None:
    """Return the GPU or instance for a UUID, which may end in a replica number."""
    while name:
        place = place_of(host, name)
        if place is not None:
            return place
        name = name.rpartition("-")[0]
    return None


def _at(host: Host, device: Path) -> set[Place]:
    """Return the GPU for a device in /sys.

    The device is the GPU itself, a virtual function or a mediated device.
    """
    names = {device.name}
    for link in (device, device / "physfn"):
        names.update(Path(os.path.realpath(str(link))).parts)
    return {(gpu.uuid, None) for gpu in host.gpus if gpu.pci_address in names}


def _of_minor(host: Host, devices: Devices, minor: str) -> tuple[Gpu | None, bool]:
    """Return (GPU or None, whether all GPUs' minors are known) for a device minor."""
    place = devices.place((GPU, int(minor)))
    gpus = [gpu for gpu in host.gpus if place and gpu.uuid == place[0]]
    return (gpus[0], True) if gpus else (None, not devices.uncertain)


def _of_node(host: Host, devices: Devices, match: re.Match[str]) -> set[Place] | None:
    gpu, known = _of_minor(host, devices, match.group(1))
    if gpu is None:
        return set() if known else None
    if match.group(2) is None:
        return {(gpu.uuid, None)}
    return {(gpu.uuid, one.id) for one in gpu.mig.instances if one.id == int(match.group(2))}


def _of_claimed(host: Host, devices: Devices, match: re.Match[str]) -> set[Place] | None:
    gpu, known = _of_minor(host, devices, match.group(1))
    if gpu is None:
        return set() if known else None
    if match.group(2) is None:
        return {(gpu.uuid, None)}
    start = _START.fullmatch(match.group(2)) or _START_BEFORE.fullmatch(match.group(2))
    if start is None:
        return {(gpu.uuid, None)}
    return {(gpu.uuid, one.id) for one in gpu.mig.instances if one.placement.start == int(start.group(1))}


def _of_passthrough(host: Host, devices: Devices, match: re.Match[str]) -> set[Place]:
    """Return nothing, because NVML does not list GPUs that virtual machines use."""
    return set()


_FORMS: tuple[tuple[re.Pattern[str], Callable[[Host, Devices, re.Match[str]], set[Place] | None]], ...] = (
    (_NODE, _of_node),
    (_CLAIMED_PASSTHROUGH, _of_passthrough),
    (_CLAIMED, _of_claimed),
)
