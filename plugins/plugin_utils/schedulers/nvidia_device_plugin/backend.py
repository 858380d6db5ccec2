# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Offer GPUs with NVIDIA's device plugin for Kubernetes.

The plugin reads its configuration from a ConfigMap. A node label selects the ConfigMap's key.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Mapping, Sequence

from ..kubernetes.backend import KubernetesBackend, allocatable
from ..model import Node, Offer
from ..protocol import Seen
from .offer import CONFIG_LABEL, KEY, offer

# Suffix of a profile after the memory size in resource names: mig-1g.10gb.me, mig-1g.24gb-me, mig-1g.24gb.gfx.
_VARIANT = re.compile(r"(?<=gb)[.-](?:me(?:\.all)?|gfx)(?=$|\.shared$)")
# Before release 0.20, the plugin's patterns match any part of a profile's name, so that "1g.10gb+me" first matches the
# pattern for 1g.10gb (https://github.com/NVIDIA/k8s-device-plugin/pull/1807).
_MERGED = (
    "because the device plugin before release 0.20 counts instances with +me, -me or +gfx as plain ones: install release 0.20 "
    "or later"
)


# Resources for whole GPUs and MIG profiles, to whose names `renameByDefault` appends `.shared`.
RESOURCE = re.compile(r"nvidia\.com/(?:gpu|mig-[0-9a-z.-]{1,60})(?:\.shared)?")


class DevicePlugin(KubernetesBackend):
    """NVIDIA's device plugin."""

    key = KEY
    applies = True
    component = "device plugin"
    chart_config: Mapping[str, Any] = {"config": {"name": "%s", "default": "default"}}
    config_label = CONFIG_LABEL
    empty_config = "version: v1\n"
    resource = RESOURCE

    def offer(self, node: Node) -> Offer:
        """Return the plugin's offer of the node's GPUs, or the refused entries."""
        return offer(node)

    def seen(self, node: Any, _objects: Sequence[Any], names: re.Pattern[str]) -> Seen | None:
        """Return the plugin's resources that the node offers now, or None."""
        offered = {name: number for name, number in allocatable(node, RESOURCE).items() if number}
        offered = {name: number for name, number in offered.items() if not names.fullmatch(name)}
        cure = "Keep the device plugin off the node (roles/gpu_kubernetes/README.md)."
        return Seen("the device plugin", offered, cure) if offered else None

    def cause(self, pending: Mapping[str, Sequence[int]]) -> str:
        """Return the known cause of missing instances, and the fix.

        The cause is known if one profile lacks as many instances as another profile of the same size has in excess.
        """
        balance: Counter[str] = Counter()
        missing = []
        for name, (planned, offered) in pending.items():
            size = _VARIANT.sub("", name)
            balance[size] += planned - offered
            if size != name and planned > offered:
                missing.append(size)
        return _MERGED if any(balance[size] == 0 for size in missing) else ""
