# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Format a node's lines of gres.conf for its current devices.

https://slurm.schedmd.com/gres.conf.html
"""

from __future__ import annotations

from typing import Sequence

from ....module_utils.errors import FleetError
from ....module_utils.model import Gpu
from ....module_utils.slurm.mig_devices import Device, DeviceNodes, capability_names, capability_path
from ...techniques.access import Clients
from ..model import Node
from .devices import matches_layout
from .gres import GPU, MPS, QUOTA, SHARD
from .offer import PERCENT, replicas
from .order import types
from .quotas import quota_gres
from .topology import Placement

# Capabilities that configure and monitor MIG, which only root may open.
PAD_CAPABILITIES = ("config", "monitor")
_CAPABILITIES_CURE = "Check /proc/driver/nvidia-caps/mig-minors and /dev/nvidia-caps."


class GresConfError(FleetError):
    """The node does not have its layout's devices."""


def lines(
    node: Node, nodes: DeviceNodes, order: Sequence[Device | None], placement: Placement | None = None
) -> list[str]:
    """Return a node's lines of gres.conf if its GPUs match the layout.

    `order` has the devices by number, and None for pads. Raises GresConfError if a GPU does not match the layout or has
    no device node.
    """
    for each in node.gpus:
        if not matches_layout(each):
            problem = "its MIG instances differ from the layout"
            raise GresConfError(_where(each.gpu, node), problem, "Apply the layout first.")
    line = "NodeName=%s AutoDetect=off Name=%%s %%s" % node.name
    near = placement or Placement()
    files = [
        _files(device, node, nodes) + _near(position, device, near) if device else _pad_files(node, nodes)
        for position, device in enumerate(order)
    ]
    found = [line % (GPU, "Type=%s %s" % each) for each in zip(types(order), files)]
    for each in sorted(node.gpus, key=lambda each: each.gpu.index):
        # slurmd copies the type and the cores from the line of the GPU.
        if isinstance(each.access, Clients):
            found.append(line % (MPS, "File=%s Count=%d" % (_gpu_path(each.gpu, node, nodes), PERCENT)))
        elif replicas(each):
            found.append(line % (SHARD, "File=%s Count=%d" % (_gpu_path(each.gpu, node, nodes), replicas(each))))
    found += [line % (QUOTA, "Count=%d Flags=CountOnly" % each.count) for each in quota_gres(node.gpus)]
    return found


def uuids(order: Sequence[Device | None]) -> list[str]:
    """Return the devices' UUIDs by number, and "" for pads.

    The numbers are those that Slurm writes to a job's CUDA_VISIBLE_DEVICES.
    """
    return [device.uuid if device else "" for device in order]


def _near(position: int, device: Device, placement: Placement) -> str:
    """Return a device's cores and links. An instance has its GPU's cores."""
    cores, links = placement.cores.get(device.gpu.uuid), placement.links.get(position)
    return (" Cores=%s" % cores if cores else "") + (" Links=%s" % links if links else "")


def _files(device: Device, node: Node, nodes: DeviceNodes) -> str:
    path = _gpu_path(device.gpu, node, nodes)
    if device.instance_id is None:
        return "File=%s" % path
    names = capability_names(device, nodes.minors[device.gpu.uuid])
    for name in names:
        if name not in nodes.capabilities:
            problem = "the driver lists no capability %s, which the MIG device %s needs" % (
                name,
                device.uuid or device.type,
            )
            raise GresConfError(_where(device.gpu, node), problem, _CAPABILITIES_CURE)
    return "MultipleFiles=%s" % ",".join([path, *(capability_path(nodes.capabilities[name]) for name in names)])


def _pad_files(node: Node, nodes: DeviceNodes) -> str:
    """Return a pad's files.

    slurmd checks that these files exist, and with ConstrainDevices it denies them to jobs. So they are device nodes
    that no job needs. Only with MultipleFiles may several lines have the same file.
    """
    if not all(name in nodes.capabilities for name in PAD_CAPABILITIES):
        problem = "the driver lists no capabilities %s, which pads need" % " and ".join(PAD_CAPABILITIES)
        raise GresConfError(node.name, problem, _CAPABILITIES_CURE)
    return "MultipleFiles=%s" % ",".join(capability_path(nodes.capabilities[name]) for name in PAD_CAPABILITIES)


def _gpu_path(gpu: Gpu, node: Node, nodes: DeviceNodes) -> str:
    if gpu.uuid not in nodes.minors:
        problem = "the driver lists no device node of the GPU"
        raise GresConfError(_where(gpu, node), problem, "Check /proc/driver/nvidia/gpus.")
    return "/dev/nvidia%d" % nodes.minors[gpu.uuid]


def _where(gpu: Gpu, node: Node) -> str:
    return "%s: %s" % (node.name, gpu.label)
