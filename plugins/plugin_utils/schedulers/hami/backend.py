# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Offer GPUs with HAMi, a scheduler and device plugin for Kubernetes.

The role writes the node's entry in the device plugin's configuration, the label that starts the plugin, and cordons of
single GPUs. https://github.com/Project-HAMi/HAMi (2.10), docs/config.md and docs/device-plugin-config.md.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Mapping, Sequence

from ...host_values import text
from ..kubernetes import hami_core, node_config
from ..kubernetes.api_objects import name_of
from ..kubernetes.backend import WITHOUT_MIG_MANAGER, KubernetesBackend, allocatable
from ..model import Node, Offer
from ..protocol import Changes, Kind, Place, Removal, Seen
from . import cordon, registration, surroundings

# The node selector of HAMi's DaemonSet (values.yaml, `nvidiaNodeSelector`).
_LABEL = {"gpu": "on"}
PLUGIN = hami_core.Plugin(
    "hami",
    "HAMi",
    "nvidia.com/gpu",
    "nvidia.com/gpumem",
    "nvidia.com/gpucores",
    "nvidia.com/priority",
    "nvidia.com/use-gpuuuid",
    counts_all=False,
    labels=_LABEL,
    registers=True,
)
_READS = (
    Kind("apps/v1", "DaemonSet", namespaced=True),
    Kind("apps/v1", "Deployment", namespaced=True),
    Kind("v1", "Pod", "spec.nodeName"),
    Kind("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration"),
)
# Annotations that HAMi leaves on a node.
_LEFT = (registration.REGISTER, "hami.io/node-nvidia-score", cordon.HANDSHAKE)
_REFUSED = "|".join(
    (
        r"""operatingmode\W{1,12}mig""",
        r"""nodeSchedulerPolicy["']?\s*:\s*["']?(?!(?:binpack|spread)\b)\w""",
        r"""gpuSchedulerPolicy["']?\s*:\s*["']?(?!(?:binpack|spread|topology-aware|mutex|numa)\b)\w""",
        r"""--node-scheduler-policy[= "',]+(?!(?:binpack|spread)\b)\w""",
        r"""--gpu-scheduler-policy[= "',]+(?!(?:binpack|spread|topology-aware|mutex|numa)\b)\w""",
    )
)


class Hami(KubernetesBackend):
    """The backend HAMi."""

    key = PLUGIN.key
    applies = True
    component = "HAMi"
    # The documentation of HAMi installs the release `hami` in kube-system. The chart derives the ConfigMap's name.
    defaults: Mapping[str, str] = {
        "namespace": "kube-system",
        "config_map": "hami-device-plugin",
        "selector": "app.kubernetes.io/component=hami-device-plugin",
        "release": "hami",
    }
    # Pods must wait if the webhook does not respond, and not bypass HAMi. The chart excludes HAMi's own pods from the
    # webhook.
    chart_values: Mapping[str, Any] = {"scheduler": {"admissionWebhook": {"failurePolicy": "Fail"}}}
    chart_config: Mapping[str, Any] = {"devicePlugin": {"nodeConfiguration": {"externalConfigName": "%s"}}}
    refused = (
        "(?i:%s)" % _REFUSED,
        "operatingmode mig removes MIG instances that HAMi did not create, and unknown scheduler policies count as the default. "
        "Remove operatingmode, and use a policy of HAMi: binpack or spread (for GPUs also topology-aware, mutex or numa).",
    )
    config_key = node_config.CONFIG_KEY
    empty_config = node_config.EMPTY
    cordons_in = cordon.CORDON
    reads = _READS
    fixed_labels: Mapping[str, str] = {**WITHOUT_MIG_MANAGER, **_LABEL}
    resource = re.compile(r"nvidia\.com/gpu")

    def offer(self, node: Node) -> Offer:
        """Return HAMi's offer of the node's GPUs, or the refused entries."""
        return hami_core.offer(node, PLUGIN)

    def changes(
        self, offer: Mapping[str, Any], node: Any, config_map: Any, place: Place, objects: Sequence[Any] = ()
    ) -> Changes:
        """Return the changes that make a node of the cluster match an offer.

        Besides labels, these are the node's entry in the ConfigMap, and cordons of GPUs that the layout changes.
        """
        changes = super().changes(offer, node, config_map, place, objects)
        on_hami = registration.registered(node) or {}
        # Cordon only GPUs that HAMi offers, because it assigns no pods to others.
        affected = [uuid for uuid in place.changing if uuid in on_hami]
        cordoning, own = cordon.cordon(node, affected), cordon.own(node)
        new = [uuid for uuid in affected if uuid not in cordon.cordoned(node)]
        lines = [
            "node %s: cordon %s in HAMi until the change is verified" % (place.node, text(uuid, 64)) for uuid in new
        ]
        if own:
            lines.append("node %s: release the cordon of %s after the verification" % (place.node, _named(own)))
        return dataclasses.replace(
            changes,
            restart=bool(changes.data) or bool(self._unregistered(offer, node)),
            cordon=cordoning,
            uncordon=cordon.release(node),
            cordoned=own,
            unseen=self._unseen(node, place.node, own, objects),
            problems=changes.problems or tuple(surroundings.problems(node, offer["labels"], place, objects)),
            warnings=(*surroundings.warnings(place.node, objects), *_stale(node, place.node)),
            lines=(*changes.lines, *lines),
        )

    def seen(self, node: Any, _objects: Sequence[Any], _names: re.Pattern[str]) -> Seen | None:
        """Return the GPUs that HAMi offers on the node now, or None.

        The registration stays after HAMi's plugin has ended. It is current if the node offers as many shares as it
        lists.
        """
        current = registration.registered(node) or {}
        shares = sum(row["count"] for row in current.values() if isinstance(row.get("count"), int))
        if not shares or allocatable(node, self.resource).get(PLUGIN.number, 0) != shares:
            return None
        cure = "Run with gpu_kubernetes_backend: hami and gpu_kubernetes_state: absent first."
        return Seen("HAMi", {PLUGIN.number: shares}, cure, frozenset(current))

    def removal(
        self,
        name: str,
        nodes: Sequence[Any],
        config_map: Any,
        objects: Sequence[Any] = (),
        removed: frozenset[str] = frozenset(),
    ) -> Removal:
        """Return the changes that undo earlier changes of the node `name`.

        `merged` removes the node's entry from the ConfigMap.
        """
        removal = super().removal(name, nodes, None, objects, removed)
        node = next((node for node in nodes if name_of(node) == name), None)
        # With a registration that stays on the node, HAMi's scheduler assigns pods to it although no plugin runs there.
        ends = removal.labels.get("gpu", _LABEL["gpu"]) != _LABEL["gpu"]
        left = dict.fromkeys(_LEFT if ends else ())
        return dataclasses.replace(removal, data={}, uncordon=cordon.release(node), leftovers=left)

    def pending_resources(
        self, offer: Mapping[str, Any], node: Any, _objects: Sequence[Any]
    ) -> dict[str, tuple[int, int]]:
        """Return the resources and registered numbers that differ from the plan.

        Also returns the handshake until the scheduler has read the node.
        """
        pending = {**super().pending_resources(offer, node, _objects), **self._unregistered(offer, node)}
        if offer["resources"] and not cordon.is_read(node):
            pending[cordon.HANDSHAKE] = (1, 0)
        return pending

    def cause(self, pending: Mapping[str, Sequence[int]]) -> str:
        """Return why resources differ from the plan, and the fix."""
        if set(pending) == {cordon.HANDSHAKE}:
            return (
                "HAMi's scheduler has not read the node: the value of %s does not contain Requesting. Check the scheduler's "
                "pods, and the node labels in its option --node-label-selector" % cordon.HANDSHAKE
            )
        if any(name.startswith("registered ") and numbers[1] == 0 for name, numbers in pending.items()):
            return "%s lacks GPUs: check the logs of the device plugin" % registration.REGISTER
        return ""

    def _unregistered(self, offer: Mapping[str, Any], node: Any) -> dict[str, tuple[int, int]]:
        """Return the registered numbers that differ from the plan."""
        planned = offer["registered"]
        # UUIDs are unknown without a driver. If the node offers no GPU, the plugin has ended and its annotation stays.
        if not planned and (offer["resources"] or not allocatable(node, self.resource).get(PLUGIN.number)):
            return {}
        return registration.differences(planned, node)

    def _unseen(self, node: Any, name: str, uuids: Sequence[str], objects: Sequence[Any]) -> str:
        if not cordon.is_read(node):
            return "HAMi's scheduler has not read the annotations of node %s yet (%s)" % (name, cordon.HANDSHAKE)
        starting = surroundings.assigned(objects, name, uuids)
        return "pods are starting on cordoned GPUs: %s" % ", ".join(starting[:5]) if starting else ""


def _named(uuids: Sequence[str]) -> str:
    return ", ".join(text(uuid, 64) for uuid in uuids)


def _stale(node: Any, name: str) -> list[str]:
    """Return a warning if the registration is stale or has unhealthy GPUs."""
    current = registration.registered(node)
    offered = allocatable(node, Hami.resource).get(PLUGIN.number, 0)
    if current and not offered:
        stale = (
            "node %s: the registration of HAMi is stale: %s lists %d GPUs, and the kubelet offers no %s. HAMi's device plugin "
            "does not run on the node."
        )
        return [stale % (name, registration.REGISTER, len(current), PLUGIN.number)]
    sick = registration.unhealthy(node)
    return (
        ["node %s: HAMi assigns no pods to %s, which it reports as unhealthy." % (name, _named(sick))] if sick else []
    )
