# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Map a layout to the Kubernetes resources of a node with one of the backends."""

from __future__ import annotations

import dataclasses
from typing import Sequence

from ...module_utils.layout.types import Layout
from ...module_utils.model import Gpu
from .device_plugin import map_device_plugin
from .dra import map_dra
from .model import BACKENDS, DEVICE_PLUGIN, DRA, MIXED, NodeGpu, NodeMapping
from .node import node_gpus
from .vgpu_plugins import map_vgpu_plugin


def map_node(
    layout: Layout, gpus: Sequence[Gpu], backend: str, name: str = "", mig_strategy: str = MIXED
) -> NodeMapping:
    """Return the mapping of a node's GPUs by the backend (one of BACKENDS).

    `name` is the node name, and `mig_strategy` (one of MIG_STRATEGIES) is for the device plugin. Each refusal lists the
    backends that offer all GPUs of its entry. Raises SelectorError if a selector matches nothing or a GPU is selected twice.
    """
    node = node_gpus(layout, gpus)
    mapping = _map(node, backend, name, mig_strategy)
    if not mapping.refusals:
        return mapping
    others = [_map(node, other, name, MIXED) for other in BACKENDS if other != backend]
    refusals = (
        dataclasses.replace(refused, backends=tuple(other.backend for other in others if _offers(other, refused.where)))
        for refused in mapping.refusals
    )
    return dataclasses.replace(mapping, refusals=tuple(refusals))


def _map(node: Sequence[NodeGpu], backend: str, name: str, mig_strategy: str) -> NodeMapping:
    if backend == DEVICE_PLUGIN:
        return map_device_plugin(node, mig_strategy)
    if backend == DRA:
        return map_dra(node)
    return map_vgpu_plugin(node, backend, name)


def _offers(mapping: NodeMapping, where: str) -> bool:
    refused = {each.where for each in mapping.refusals}
    return where not in refused | {each.where for each in mapping.left_out}
