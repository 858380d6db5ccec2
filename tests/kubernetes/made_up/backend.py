# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define the backend for test_made_up_backend.py.

The test copies this file into a collection copy's folder plugin_utils/schedulers.
"""

from __future__ import annotations

import re
from typing import ClassVar

from ..kubernetes.backend import KubernetesBackend
from ..model import Node, Offer, by_entry, refusal

RESOURCE = "beans.example.com/gpu"


class Beans(KubernetesBackend):
    """Offer whole GPUs on nodes that have a label."""

    key = "beans"
    applies = True
    fixed_labels: ClassVar[dict[str, str]] = {"beans.example.com/node": "true"}
    early_labels = ()
    resource = re.compile(re.escape(RESOURCE))

    def offer(self, node: Node) -> Offer:
        """Return the number of whole GPUs, and refuse MIG."""
        partitioned = [gpu for gpu in node.gpus if gpu.instances is not None]
        if partitioned:
            refusals = [refusal(group, "beans have no MIG instances") for group in by_entry(partitioned)]
            return Offer(self.key, refusals=tuple(refusals))
        return Offer(self.key, {RESOURCE: len(node.gpus)}, labels=self.fixed_labels, notes=("Beans are counted.",))
