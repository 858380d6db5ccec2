# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Backend: NVIDIA's DRA driver for Kubernetes.

Pods request devices with ResourceClaims, so no object of the cluster needs to be changed.
"""

from __future__ import annotations

from ..kubernetes.backend import KubernetesBackend
from ..model import Node, Offer
from .offer import KEY, offer


class Dra(KubernetesBackend):
    """NVIDIA's DRA driver."""

    key = KEY

    def offer(self, node: Node) -> Offer:
        """Return the driver's offer of the node's GPUs, or the refused entries."""
        return offer(node)
