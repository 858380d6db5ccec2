# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Offer GPUs with Volcano's vGPU plugin for Kubernetes.

https://github.com/Project-HAMi/volcano-vgpu-device-plugin, README.md and doc/config.md.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from typing import Any, Mapping, Sequence

from ....module_utils.errors import FleetError
from ..kubernetes import hami_core, node_config
from ..kubernetes.api_objects import annotations_of, labels_of, texts
from ..kubernetes.backend import WITHOUT_MIG_MANAGER, KubernetesBackend, allocatable, config_text
from ..model import Node, Offer
from ..protocol import Changes, Place, Read, Seen, Shared
from . import scheduler_conf

_NODE_LABEL = {"openfleet.gpu/backend": "volcano_vgpu"}
# Label with a digest of the node's configuration. A change restarts the plugin.
_CONFIG_LABEL = "openfleet.gpu/vgpu-config"
_HANDSHAKE = "volcano.sh/node-vgpu-handshake"
# Annotation in which the plugin lists its GPUs: "UUID,count,MiB,type,health,mode:", repeated.
_REGISTER = "volcano.sh/node-vgpu-register"

PLUGIN = hami_core.Plugin(
    "volcano_vgpu",
    "Volcano's vGPU plugin",
    "volcano.sh/vgpu-number",
    "volcano.sh/vgpu-memory",
    "volcano.sh/vgpu-cores",
    None,
    None,
    counts_all=True,
    labels=_NODE_LABEL,
)


class VolcanoVgpu(KubernetesBackend):
    """The backend Volcano's vGPU plugin."""

    key = PLUGIN.key
    applies = True
    component = "vGPU plugin"
    defaults: Mapping[str, str] = {
        "namespace": "kube-system",
        "config_map": "volcano-vgpu-node-config",
        "selector": "name=volcano-device-plugin",
        "release": "volcano-vgpu-device-plugin",
    }
    fixed_labels: Mapping[str, str] = {**WITHOUT_MIG_MANAGER, **_NODE_LABEL}
    digest_label = _CONFIG_LABEL
    config_key = node_config.CONFIG_KEY
    resource = re.compile(r"volcano\.sh/vgpu-(?:number|memory|cores)")

    def offer(self, node: Node) -> Offer:
        """Return the plugin's offer of the node's GPUs, or the refused entries."""
        offer = hami_core.offer(node, PLUGIN)
        if not offer.config:
            return offer
        digest = "openfleet-%s" % hashlib.sha256(config_text(offer.config).encode()).hexdigest()[:16]
        return dataclasses.replace(offer, labels={**offer.labels, _CONFIG_LABEL: digest})

    def changes(
        self, offer: Mapping[str, Any], node: Any, config_map: Any, place: Place, objects: Sequence[Any] = ()
    ) -> Changes:
        """Return the changes that make a node of the cluster match an offer.

        The plugin reads its configuration when it starts.
        """
        changes = super().changes(offer, node, config_map, place, objects)
        restart = changes.pending or changes.data or _CONFIG_LABEL in changes.labels
        return dataclasses.replace(changes, restart=bool(restart))

    def pending_resources(
        self, offer: Mapping[str, Any], node: Any, objects: Sequence[Any]
    ) -> dict[str, tuple[int, int]]:
        """Return the resources that differ from the plan, and a failed handshake.

        If the plugin does not answer for 60 seconds, Volcano's scheduler writes Deleted into the handshake. It then
        places pods by the allocatable numbers alone, so that pods can get more memory of a GPU than it has.
        """
        pending = super().pending_resources(offer, node, objects)
        handshake = annotations_of(node).get(_HANDSHAKE, "Deleted")
        if offer["resources"] and not pending and "Deleted" in handshake:
            return {_HANDSHAKE: (1, 0)}
        return pending

    def seen(self, node: Any, _objects: Sequence[Any], _names: re.Pattern[str]) -> Seen | None:
        """Return the GPUs that the vGPU plugin offers on the node now, or None."""
        number = allocatable(node, self.resource).get(PLUGIN.number, 0)
        rows = annotations_of(node).get(_REGISTER, "").split(":")
        uuids = frozenset(filter(None, (row.partition(",")[0] for row in rows)))
        cure = "Run with gpu_kubernetes_backend: volcano_vgpu and gpu_kubernetes_state: absent first."
        return Seen("Volcano's vGPU plugin", {PLUGIN.number: number}, cure, uuids) if number else None

    def cause(self, pending: Mapping[str, Sequence[int]]) -> str:
        """Return why resources differ from the plan, and the fix."""
        if _HANDSHAKE not in pending:
            return ""
        return (
            "because the vGPU plugin does not answer Volcano's scheduler, which then places pods without checking the memory "
            "of each GPU: cordon the node until the plugin runs"
        )

    def shared_reads(self, scheduler: tuple[str, str]) -> tuple[Read, ...]:
        """Return the ConfigMap of Volcano's scheduler."""
        namespace, name = scheduler
        return (Read("v1", "ConfigMap", name, namespace),)

    def shared(
        self,
        removed: frozenset[str],
        nodes: Sequence[Any],
        objects: Mapping[Read, Sequence[Any] | None],
    ) -> Shared:
        """Return the changes of this ConfigMap."""
        ((scheduler, current),) = objects.items()
        used = not removed or any(_NODE_LABEL.items() <= labels_of(node).items() for node in nodes)
        try:
            part = _scheduler(scheduler, current, used)
        except FleetError as error:
            return Shared(problems=(str(error),))
        return Shared() if part is None else Shared((part[0],), lines=(part[1],))


def _scheduler(read: Read, found: Sequence[Any] | None, used: bool) -> tuple[dict[str, Any], str] | None:
    """Return (the scheduler's changed ConfigMap, line of the plan), or None."""
    where = "ConfigMap %s/%s" % (read.namespace, read.name)
    config_map = found[0] if found else None
    text = texts(config_map, "data").get(scheduler_conf.KEY)
    if text is None:
        if not used:
            return None
        cure = "Install Volcano, or set gpu_kubernetes_volcano_config_map to the ConfigMap of its scheduler."
        raise FleetError(where, "the cluster has no such ConfigMap with the key %s" % scheduler_conf.KEY, cure)
    place = "%s, %s" % (where, scheduler_conf.KEY)
    changed = scheduler_conf.with_deviceshare(text, place) if used else scheduler_conf.without_deviceshare(text)
    if changed == text:
        return None
    line = "%s: %s" % (where, "add the plugin deviceshare" if used else "remove the plugin deviceshare")
    return _written(read, config_map, scheduler_conf.KEY, changed), line


def _written(read: Read, current: Any, key: str, text: str) -> dict[str, Any]:
    """Return a ConfigMap with one key.

    It has the current object's version, so that the API refuses it if another program has changed the object.
    """
    version = texts(current, "metadata").get("resourceVersion")
    metadata = {"name": read.name, "namespace": read.namespace, **({"resourceVersion": version} if version else {})}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {key: text}}
