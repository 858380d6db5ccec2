# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""List a GPU's MIG devices as Slurm does, with pure functions."""

from __future__ import annotations

from typing import Mapping, Sequence

from ..frozen import frozen
from ..layout.profile_name import profile_order
from ..model import ComputeInstance, Gpu, GpuInstance


@frozen
class Device:
    """A device of gres/gpu.

    `uuid` is the UUID of the GPU or MIG device, or empty for a device that does not exist yet. `instance_id` and
    `compute_id` are None for a whole GPU, and for a device that does not exist yet.
    """

    type: str
    gpu: Gpu
    uuid: str = ""
    instance_id: int | None = None
    compute_id: int | None = None


@frozen
class DeviceNodes:
    """The device nodes of a host.

    minors        minor number of each GPU (/dev/nvidiaN) by UUID
    capabilities  number of each MIG capability (/dev/nvidia-caps/nvidia-capN) by name, such as gpu0/gi2/access
    """

    minors: Mapping[str, int]
    capabilities: Mapping[str, int]


def capability_names(device: Device, minor: int) -> tuple[str, str]:
    """Return the names of a MIG device's capabilities."""
    instance = "gpu%d/gi%d" % (minor, device.instance_id or 0)
    return "%s/access" % instance, "%s/ci%d/access" % (instance, device.compute_id or 0)


def capability_path(number: int) -> str:
    """Return the device node of a MIG capability."""
    return "/dev/nvidia-caps/nvidia-cap%d" % number


def all_devices(gpu: Gpu) -> list[Device]:
    """Return a GPU's MIG devices, or the GPU itself if MIG mode is off.

    The type of a whole GPU is empty.
    """
    return mig_devices(gpu) if gpu.mig.enabled else [Device("", gpu, gpu.uuid)]


def device_files(device: Device, nodes: DeviceNodes) -> tuple[str, ...]:
    """Return a device's device nodes as in gres.conf.

    Returns an empty tuple if the driver does not list them.
    """
    minor = nodes.minors.get(device.gpu.uuid)
    if minor is None:
        return ()
    path = "/dev/nvidia%d" % minor
    if device.instance_id is None:
        return (path,)
    names = capability_names(device, minor)
    if any(name not in nodes.capabilities for name in names):
        return ()
    return (path, *(capability_path(nodes.capabilities[name]) for name in names))


def mig_devices(gpu: Gpu) -> list[Device]:
    """Return a GPU's MIG devices in the order of gres.conf.

    Large profiles come first. Devices of one profile are in the order of their placements.
    """
    whole = {profile.name: profile.compute_slices for profile in gpu.mig.profiles}
    found = []
    for instance in sorted(gpu.mig.instances, key=lambda one: (profile_order(one.profile), one.placement.start)):
        for part in sorted(instance.compute_instances, key=lambda one: (-one.compute_slices, one.placement.start)):
            kind = _type_of(instance, part, whole)
            found.append(Device(kind, gpu, part.mig_uuid or "", instance.id, part.id))
    return found


def instance_types(profile: str, compute_slices: Sequence[int] = ()) -> list[str]:
    """Return the GRES types of an instance, one for each compute instance.

    Requests cannot contain a plus sign, so it becomes a dot: 1g.10gb.me.
    """
    name = profile.replace("+", ".")
    return ["%dc.%s" % (slices, name) for slices in compute_slices] or [name]


def _type_of(instance: GpuInstance, part: ComputeInstance, whole: Mapping[str, int]) -> str:
    slices = whole.get(instance.profile, int(instance.profile.partition("g")[0]))
    spans = len(instance.compute_instances) == 1 and part.compute_slices == slices
    return instance_types(instance.profile, () if spans else (part.compute_slices,))[0]
