# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Backend: NVIDIA's DRA driver for Kubernetes.

Pods reference claims, so the cluster needs no change.
"""

from __future__ import annotations

from ..kubernetes.backend import KubernetesBackend
from ..model import Node, Offer
from .offer import KEY, offer


class Dra(KubernetesBackend):
    """NVIDIA's DRA driver."""

    key = KEY

    def offer(self, node: Node) -> Offer:
        """Return the offer of the node's GPUs, or refusals."""
        return offer(node)
