# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Format the lines of gres.conf for the current devices of a node.

https://slurm.schedmd.com/gres.conf.html
"""

from __future__ import annotations

from ....module_utils.errors import FleetError
from ....module_utils.model import Gpu
from ....module_utils.slurm.mig_devices import Device, DeviceNodes, capability_names
from ...techniques.access import Clients
from ..model import Node
from .devices import desired, matches_layout
from .gres import GPU, MPS, SHARD
from .offer import PERCENT, replicas
from .topology import Placement


class GresConfError(FleetError):
    """The node does not have the devices of its layout."""


def lines(node: Node, nodes: DeviceNodes, placement: Placement | None = None) -> list[str]:
    """Return the lines of gres.conf for a node whose GPUs match the layout.

    The order is that of the node's `Gres=`. Raises GresConfError if a GPU does not match the layout, or has no device node.
    """
    for each in node.gpus:
        if not matches_layout(each):
            problem = "its MIG instances differ from the layout"
            raise GresConfError(_where(each.gpu, node), problem, "Apply the layout first.")
    line = "NodeName=%s AutoDetect=off Name=%%s %%s" % node.name
    found = [
        line
        % (
            GPU,
            "Type=%s %s%s"
            % (device.type, _files(device, node, nodes), _near(position, device, placement or Placement())),
        )
        for position, device in enumerate(desired(node.gpus))
    ]
    for each in sorted(node.gpus, key=lambda each: each.gpu.index):
        # slurmd copies the type and the cores from the line of the GPU.
        if isinstance(each.access, Clients):
            found.append(line % (MPS, "File=%s Count=%d" % (_gpu_path(each.gpu, node, nodes), PERCENT)))
        elif replicas(each):
            found.append(line % (SHARD, "File=%s Count=%d" % (_gpu_path(each.gpu, node, nodes), replicas(each))))
    return found


def uuids(node: Node) -> list[str]:
    """Return the UUIDs of the devices by number.

    Slurm writes these numbers to CUDA_VISIBLE_DEVICES of a job.
    """
    return [device.uuid for device in desired(node.gpus)]


def _near(position: int, device: Device, placement: Placement) -> str:
    """Return the cores and links of a device. An instance has the cores of its GPU."""
    cores, links = placement.cores.get(device.gpu.uuid), placement.links.get(position)
    return (" Cores=%s" % cores if cores else "") + (" Links=%s" % links if links else "")


def _files(device: Device, node: Node, nodes: DeviceNodes) -> str:
    path = _gpu_path(device.gpu, node, nodes)
    if device.instance_id is None:
        return "File=%s" % path
    names = capability_names(nodes.minors[device.gpu.uuid], device)
    return "MultipleFiles=%s" % ",".join([path, *(_capability_path(name, device, node, nodes) for name in names)])


def _gpu_path(gpu: Gpu, node: Node, nodes: DeviceNodes) -> str:
    if gpu.uuid not in nodes.minors:
        problem = "the driver lists no device node of the GPU"
        raise GresConfError(_where(gpu, node), problem, "Check /proc/driver/nvidia/gpus.")
    return "/dev/nvidia%d" % nodes.minors[gpu.uuid]


def _capability_path(name: str, device: Device, node: Node, nodes: DeviceNodes) -> str:
    if name not in nodes.capabilities:
        problem = "the driver lists no capability %s, which the MIG device %s needs" % (
            name,
            device.uuid or device.type,
        )
        raise GresConfError(_where(device.gpu, node), problem, "Check /proc/driver/nvidia-caps/mig-minors.")
    return "/dev/nvidia-caps/nvidia-cap%d" % nodes.capabilities[name]


def _where(gpu: Gpu, node: Node) -> str:
    return "%s: %s" % (node.name, gpu.label)
