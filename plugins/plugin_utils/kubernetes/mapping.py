# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Map a layout to what Kubernetes offers of a node by one of the backends."""

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
    """Return what the backend (one of BACKENDS) makes of the GPUs of a node, as the layout wants them.

    `name` is what Kubernetes calls the node, `mig_strategy` (one of MIG_STRATEGIES) is the device plugin's. Each refusal names
    the backends that offer all GPUs of its entry. Raises SelectorError where a selector matches nothing or a GPU is named twice.
    """
    node = node_gpus(layout, gpus)
    found = _map(node, backend, name, mig_strategy)
    if not found.refusals:
        return found
    others = [_map(node, other, name, MIXED) for other in BACKENDS if other != backend]
    refusals = (
        dataclasses.replace(refused, backends=tuple(other.backend for other in others if _offers(other, refused.where)))
        for refused in found.refusals
    )
    return dataclasses.replace(found, refusals=tuple(refusals))


def _map(node: Sequence[NodeGpu], backend: str, name: str, mig_strategy: str) -> NodeMapping:
    if backend == DEVICE_PLUGIN:
        return map_device_plugin(node, mig_strategy)
    if backend == DRA:
        return map_dra(node)
    return map_vgpu_plugin(node, backend, name)


def _offers(mapping: NodeMapping, where: str) -> bool:
    refused = {each.where for each in mapping.refusals}
    return where not in refused | {each.where for each in mapping.left_out}
