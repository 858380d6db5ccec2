# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Backend: Volcano's vGPU plugin for Kubernetes.

https://github.com/Project-HAMi/volcano-vgpu-device-plugin, README.md and doc/config.md.
"""

from __future__ import annotations

from ..kubernetes import hami_core
from ..kubernetes.backend import KubernetesBackend
from ..model import Node, Offer

PLUGIN = hami_core.Plugin(
    "volcano_vgpu",
    "Volcano's vGPU plugin",
    "volcano.sh/vgpu-number",
    "volcano.sh/vgpu-memory",
    "volcano.sh/vgpu-cores",
    None,
    None,
    counts_all=True,
    labels={},
)


class VolcanoVgpu(KubernetesBackend):
    """Volcano's vGPU plugin."""

    key = PLUGIN.key

    def offer(self, node: Node) -> Offer:
        """Return the plugin's offer of the node's GPUs, or the refused entries."""
        return hami_core.offer(node, PLUGIN)
