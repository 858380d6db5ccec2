# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Backend: fixed tenants as extended resources.

The plugin of this collection uses the kubelet's device plugin API, for clusters without DRA. Each fixed tenant of an entry with
`leases: {by: kubernetes}` is a resource with one device (roles/gpu_kubernetes/files/openfleet_dra/device_plugin.py).
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from typing import Any, Mapping, Sequence

from ..kubernetes.backend import WITHOUT_MIG_MANAGER, KubernetesBackend, allocatable
from ..kubernetes.leased import NODE_LABEL, is_leased, left_out, tenants_of
from ..model import Node, Offer, Request, by_entry, refusal
from ..protocol import Changes, Place, Seen

KEY = "openfleet_device_plugin"
PREFIX = "gpu.openfleet.io/"
#: Names of tenants that are part of the resource name. Other names are replaced by a digest.
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,50}[a-z0-9])?")


class OpenfleetDevicePlugin(KubernetesBackend):
    """The plugin of this collection for fixed tenants, without DRA."""

    key = KEY
    applies = True
    component = "plugin for tenants"
    defaults: Mapping[str, str] = {"namespace": "default", "config_map": "", "selector": "", "release": ""}
    fixed_labels: Mapping[str, str] = {**WITHOUT_MIG_MANAGER, NODE_LABEL: KEY}
    resource = re.compile(re.escape(PREFIX) + "tenant-.+")
    leases = True

    def offer(self, node: Node) -> Offer:
        """Return a resource for each fixed tenant.

        Entries with leases and without tenants are refused.
        """
        groups = by_entry(node.gpus)
        leased = [group for group in groups if is_leased(group[0])]
        empty = [group for group in leased if not tenants_of(group[0])]
        if empty:
            problem = "it has no fixed tenants, and the device plugin API has no sizes"
            cure = "Add tenants to the entry."
            return Offer(KEY, refusals=tuple(refusal(group, problem, cure) for group in empty))
        tenants = [(group[0].where, resource_of(tenant.name)) for group in leased for tenant in tenants_of(group[0])]
        return Offer(
            KEY,
            {name: 1 for _where, name in tenants},
            labels=dict(self.fixed_labels),
            requests=tuple(Request(where, name, {name: 1}) for where, name in tenants),
            left_out=left_out(groups),
            notes=("Only fixed tenants are offered. The rest of their GPUs is unused.",) if tenants else (),
        )

    def changes(
        self, offer: Mapping[str, Any], node: Any, config_map: Any, place: Place, objects: Sequence[Any] = ()
    ) -> Changes:
        """Return the changes that make a node of the cluster match an offer.

        The plugin follows the layout itself, so it is never restarted.
        """
        return dataclasses.replace(super().changes(offer, node, config_map, place, objects), restart=False)

    def seen(self, node: Any, _objects: Sequence[Any], names: re.Pattern[str]) -> Seen | None:
        """Return the tenants that the node offers now, or None."""
        offered = {name: number for name, number in allocatable(node, self.resource).items() if number}
        offered = {name: number for name, number in offered.items() if not names.fullmatch(name)}
        cure = "Run with gpu_kubernetes_backend: %s and gpu_kubernetes_state: absent first." % KEY
        return Seen("the plugin for tenants", offered, cure) if offered else None

    def cause(self, pending: Mapping[str, Sequence[int]]) -> str:
        """Return where the plugin explains differences."""
        return "see journalctl -u openfleet-gpu-dra on the host" if pending else ""


def resource_of(tenant: str) -> str:
    """Return the resource name of a tenant."""
    name = tenant if _LABEL.fullmatch(tenant) else hashlib.sha256(tenant.encode()).hexdigest()[:32]
    return "%stenant-%s" % (PREFIX, name)
