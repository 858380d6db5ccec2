# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Select the entries of a node with `leases: {by: kubernetes}`. Pure."""

from __future__ import annotations

from typing import Any, Sequence

from ....module_utils.layout.leases import KUBERNETES
from ..model import LeftOut, NodeGpu

NODE_LABEL = "openfleet.gpu/backend"


def is_leased(gpu: NodeGpu) -> bool:
    """Return whether the entry of a GPU has leases by Kubernetes."""
    return gpu.entry is not None and gpu.entry.leases is not None and gpu.entry.leases.by == KUBERNETES


def tenants_of(gpu: NodeGpu) -> Sequence[Any]:
    """Return the fixed tenants of the entry of a GPU."""
    return gpu.technique.tenants(gpu.entry.part) if gpu.technique is not None and gpu.entry is not None else ()


def left_out(groups: Sequence[Sequence[NodeGpu]]) -> tuple[LeftOut, ...]:
    """Return the entries without leases by Kubernetes, with the reason."""
    return tuple(
        LeftOut(group[0].where, tuple(each.gpu.index for each in group), "it has no leases by %s" % KUBERNETES)
        for group in groups
        if not is_leased(group[0])
    )
