# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare a node of a cluster with its offer, and undo the changes. Pure.

This is the base of all backends for Kubernetes.
"""

from __future__ import annotations

import json
import re
from typing import Any, Mapping, Sequence

from ...host_values import text
from ..model import Node, Offer
from ..protocol import Changes, Kind, Place, Removal
from .api_objects import annotations_of, labels_of, name_of, texts

# Label that prevents the GPU operator from running mig-manager on the node. By default, mig-manager would remove all
# instances. The operator does not change a label that has a value.
# https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/gpu-operator-mig.html
WITHOUT_MIG_MANAGER = {"nvidia.com/gpu.deploy.mig-manager": "false"}
# Node annotation that records the values of labels before the first run. It is JSON, with null for a label that did not exist.
# The request that changes the labels also writes this annotation, so that no label is changed without a record.
LABELS_BEFORE = "openfleet.gpu/labels-before"
# Pattern for the keys of the ConfigMap that belong to the collection.
OWN_KEY = re.compile(r"openfleet-[0-9a-f]{16}")
_COUNT = re.compile(r"[0-9]{1,9}")


class KubernetesBackend:
    """Base of the backends for Kubernetes.

    If `applies` is true, the backend sets the attributes below. Its offers must only use the labels in `fixed_labels` and
    `config_label`. If a record of earlier labels contains any other label, the record counts as unreadable.

    fixed_labels  labels with the same value on each node
    early_labels  names of fixed labels that are set before the layout of the host changes
    resource      pattern of the resources that the backend offers in the node's `allocatable`
    """

    key = ""
    applies = False
    component = ""
    # The defaults of NVIDIA's device plugin.
    defaults: Mapping[str, str] = {
        "namespace": "nvidia-device-plugin",
        "config_map": "openfleet-gpu-device-plugin",
        "selector": "app.kubernetes.io/name=nvidia-device-plugin",
        "release": "nvidia-device-plugin",
    }
    chart_values: Mapping[str, Any] = {}
    refused = ("", "")
    config_label = ""
    empty_config = ""
    config_key = ""
    cordons_in = ""
    offered_in = Kind("v1", "Node")
    reads: tuple[Kind, ...] = ()
    fixed_labels: Mapping[str, str] = WITHOUT_MIG_MANAGER
    early_labels: tuple[str, ...] = tuple(WITHOUT_MIG_MANAGER)
    resource = re.compile(r"(?!)")

    def offer(self, node: Node) -> Offer:
        """Return the offer of the node's GPUs, or the refused entries."""
        raise NotImplementedError

    def cause(self, pending: Mapping[str, Sequence[int]]) -> str:
        """Return why resources differ from the plan, and how to fix that.

        Returns an empty text if the numbers do not show the cause.
        """
        return ""

    def changes(
        self, offer: Mapping[str, Any], node: Any, config_map: Any, place: Place, objects: Sequence[Any] = ()
    ) -> Changes:
        """Return the changes that make a node of the cluster match an offer.

        `offer` is the result of request.answer. `node` and `config_map` are objects of the API, or None. If the ConfigMap does
        not exist, the changes create it. `objects` are the objects of `offered_in` and `reads`.
        """
        if not isinstance(node, Mapping):
            problem = (
                "The cluster has no node %s. Set gpu_kubernetes_node to the node name (kubectl get nodes). "
                "Nothing was changed." % place.node
            )
            return Changes(problems=(problem,))
        labels, before = labels_of(node), self._before(node)
        if before is None:
            problem = (
                "node %s: the annotation %s with the labels from before the first run is not readable. Check it, then remove it "
                "(kubectl annotate node %s %s-). Nothing was changed."
                % (place.node, LABELS_BEFORE, place.node, LABELS_BEFORE)
            )
            return Changes(problems=(problem,))
        desired = {name: value for name, value in offer["labels"].items() if labels.get(name) != value}
        unrecorded = {name: labels.get(name) for name in desired if name not in before}
        key, content = offer["config_name"], config_text(offer["config"])
        data = {} if not key or texts(config_map, "data").get(key) == content else {key: content}
        pending = self.pending_resources(offer, node, objects)
        lines = [
            "node %s: label %s: %s (%s)" % (place.node, name, value, _was(labels, name))
            for name, value in desired.items()
        ]
        lines += ["ConfigMap %s/%s: write key %s" % (place.namespace, place.config_map, key) for key in data]
        return Changes(
            desired,
            {LABELS_BEFORE: _record({**before, **unrecorded})} if unrecorded else {},
            self._opt_out(desired, before, unrecorded),
            data,
            pending,
            self.pending_text(pending),
            restart=bool(pending and self.component) and self.config_label not in desired,
            lines=tuple(lines),
        )

    def removal(self, name: str, nodes: Sequence[Any], config_map: Any, objects: Sequence[Any] = ()) -> Removal:
        """Return the changes that undo earlier changes of the node `name`.

        `nodes` contains this node and all nodes that have `config_label`. `objects` are the objects of `offered_in` and `reads`
        on all nodes. Only labels that are recorded in LABELS_BEFORE are restored. A label that someone else has changed in the
        meantime is kept.
        """
        by_name = {name_of(node): node for node in nodes if isinstance(node, Mapping)}
        node = by_name.get(name, {})
        labels, before = labels_of(node), self._before(node)
        if before is None:
            problem = (
                "node %s: the annotation %s is not readable. Remove it and the labels by hand. Nothing was changed."
                % (name, LABELS_BEFORE)
            )
            return Removal(problems=(problem,))
        back = {label: value for label, value in before.items() if self._is_own(label, labels.get(label, ""))}
        used = {labels_of(other).get(self.config_label) for other_name, other in by_name.items() if other_name != name}
        used.add(back.get(self.config_label, labels.get(self.config_label)))
        keys = [key for key in texts(config_map, "data") if OWN_KEY.fullmatch(key) and key not in used]
        return Removal(back, {LABELS_BEFORE: None} if before else {}, dict.fromkeys(sorted(keys)))

    def merged(self, config_map: Any, entries: Mapping[str, Mapping[str, Any] | None]) -> tuple[str, str]:
        """Return the new content of `config_key`, and a problem or an empty text."""
        raise NotImplementedError

    def pending_resources(
        self, offer: Mapping[str, Any], node: Any, _objects: Sequence[Any]
    ) -> dict[str, tuple[int, int]]:
        """Return the resources whose allocatable number differs from the plan.

        The result maps names to (planned, offered). A resource that is not planned must be 0 or absent. After a change of
        instances, old and new resources can be allocatable at the same time
        (https://github.com/NVIDIA/k8s-device-plugin/issues/240).
        """
        return differing(offer["resources"], allocatable(node, self.resource))

    def pending_text(self, pending: Mapping[str, Sequence[int]]) -> str:
        """Return the resources that differ from the plan, as text.

        If the numbers show the cause, the text includes the cause and the fix.
        """
        parts = ["%s %d (planned %d)" % (name, offered, planned) for name, (planned, offered) in pending.items()]
        return ", ".join(filter(None, [*parts, self.cause(pending)]))

    def _is_own(self, label: str, value: str) -> bool:
        if label == self.config_label:
            return OWN_KEY.fullmatch(value) is not None
        return self.fixed_labels.get(label) == value

    def _before(self, node: Mapping[str, Any]) -> dict[str, str | None] | None:
        """Return the label values that the node's annotation records.

        Returns None if the annotation is not readable.
        """
        written = annotations_of(node).get(LABELS_BEFORE)
        if written is None:
            return {}
        try:
            recorded = json.loads(written)
        except ValueError:
            return None
        if not isinstance(recorded, dict) or not set(recorded) <= {self.config_label, *self.fixed_labels}:
            return None
        return recorded if all(value is None or isinstance(value, str) for value in recorded.values()) else None

    def _opt_out(
        self, desired: Mapping[str, str], before: Mapping[str, str | None], unrecorded: Mapping[str, str | None]
    ) -> dict[str, Any]:
        early = {name: desired[name] for name in self.early_labels if name in desired}
        if not early:
            return {}
        metadata: dict[str, Any] = {"labels": early}
        new = {name: unrecorded[name] for name in early if name in unrecorded}
        if new:
            metadata["annotations"] = {LABELS_BEFORE: _record({**before, **new})}
        return metadata


def allocatable(node: Any, resource: re.Pattern[str]) -> dict[str, int]:
    """Return the allocatable number of each resource whose name matches."""
    status = node.get("status") if isinstance(node, Mapping) else None
    return {
        name: int(number)
        for name, number in texts(status, "allocatable").items()
        if resource.fullmatch(name) and _COUNT.fullmatch(number)
    }


def differing(planned: Mapping[str, int], offered: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Return (planned, offered) of each resource for which the two numbers differ.

    A missing resource counts as 0.
    """
    names = [*planned, *sorted(set(offered) - set(planned))]
    pairs = {name: (planned.get(name, 0), offered.get(name, 0)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def config_text(config: Mapping[str, Any]) -> str:
    """Return a configuration file as JSON. JSON is valid YAML.

    Equal configurations have equal texts.
    """
    return json.dumps(config, sort_keys=True, indent=2) + "\n"


def _record(before: Mapping[str, str | None]) -> str:
    return json.dumps(before, sort_keys=True)


def _was(labels: Mapping[str, str], name: str) -> str:
    return "was %s" % text(labels[name], 63) if name in labels else "new"
