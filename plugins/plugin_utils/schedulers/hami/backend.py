# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Backend: HAMi, a scheduler and device plugin for Kubernetes.

https://github.com/Project-HAMi/HAMi, docs/config.md and docs/device-plugin-config.md.
"""

from __future__ import annotations

from ..kubernetes import hami_core
from ..kubernetes.backend import KubernetesBackend
from ..model import Node, Offer

PLUGIN = hami_core.Plugin(
    "hami",
    "HAMi",
    "nvidia.com/gpu",
    "nvidia.com/gpumem",
    "nvidia.com/gpucores",
    "nvidia.com/priority",
    "nvidia.com/use-gpuuuid",
    counts_all=False,
    # The node selector of HAMi's DaemonSet (values.yaml, `nvidiaNodeSelector`).
    labels={"gpu": "on"},
)


class Hami(KubernetesBackend):
    """HAMi."""

    key = PLUGIN.key

    def offer(self, node: Node) -> Offer:
        """Return HAMi's offer of the node's GPUs, or the refused entries."""
        return hami_core.offer(node, PLUGIN)
