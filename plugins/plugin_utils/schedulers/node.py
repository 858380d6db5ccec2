# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the layout entry of each GPU of a node."""

from __future__ import annotations

from typing import Sequence

from ...module_utils.change.targets import targets
from ...module_utils.layout.types import Entry, Layout
from ...module_utils.model import Gpu
from .model import NodeGpu, NodeInstance


def node_gpus(layout: Layout, gpus: Sequence[Gpu]) -> tuple[NodeGpu, ...]:
    """Return the desired state of each of the node's GPUs.

    For a GPU without an entry, this is the current state. Raises SelectorError if a selector matches nothing or a GPU
    is selected twice.
    """
    entries = {entry.where: entry for entry in layout.entries}
    by_uuid = {target.gpu_uuid: entries[target.where] for target in targets(layout, gpus)}
    return tuple(_node_gpu(gpu, by_uuid.get(gpu.uuid)) for gpu in gpus)


def _node_gpu(gpu: Gpu, entry: Entry | None) -> NodeGpu:
    if entry is None:
        return NodeGpu(gpu, None, _current_instances(gpu) if gpu.mig.enabled else None)
    if entry.sharing != "mig":
        return NodeGpu(gpu, entry)
    desired = [
        NodeInstance(
            instance.profile, tuple(sorted(instance.compute_slices, reverse=True)), instance.sharing, instance.part
        )
        for instance in entry.instances
        for _number in range(instance.count)
    ]
    return NodeGpu(gpu, entry, tuple(desired))


def _current_instances(gpu: Gpu) -> tuple[NodeInstance, ...]:
    """Return the current GPU instances.

    Leaves out a GPU instance without a compute instance, which no process can use as a device.
    """
    slices = {profile.name: profile.compute_slices for profile in gpu.mig.profiles}
    instances = []
    for instance in gpu.mig.instances:
        parts = tuple(sorted((part.compute_slices for part in instance.compute_instances), reverse=True))
        if parts:
            spans = len(parts) == 1 and parts[0] == slices.get(
                instance.profile, int(instance.profile.partition("g")[0])
            )
            instances.append(NodeInstance(instance.profile, () if spans else parts))
    return tuple(instances)
