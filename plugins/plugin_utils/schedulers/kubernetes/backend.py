# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare a cluster's node with its offer, and undo the changes. Pure.

This is the base of all backends for Kubernetes.
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any, Iterator, Mapping, Sequence

from ...host_values import text
from ..model import Node, Offer
from ..other_offers import in_cluster
from ..protocol import Changes, Kind, Place, Read, Removal, Seen, Shared
from ..registry import KEYS, backend
from . import node_config
from .api_objects import annotations_of, labels_of, name_of, texts

# Labels that protect the layout from the GPU operator's mig-manager. By default, mig-manager would remove all
# instances. https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/gpu-operator-mig.html
#
# Both labels are needed. The operator does not change a label with a value, but sets a missing or empty
# MIG_CONFIG_LABEL to all-disabled even if mig-manager does not run on the node. If it finds no GPU for a moment, it
# deletes DEPLOY_LABEL, and later sets it to true (labelGPUNodes in its controllers/state_manager.go).
DEPLOY_LABEL = "nvidia.com/gpu.deploy.mig-manager"
MIG_CONFIG_LABEL = "nvidia.com/mig.config"
# A name that no configuration of mig-manager has, so that it reports `failed` before it changes anything
# (validateMigConfig in pkg/mig/reconfigure of mig-parted).
NO_MIG_CONFIG = "managed-by-openfleet-gpu"
WITHOUT_MIG_MANAGER = {DEPLOY_LABEL: "false", MIG_CONFIG_LABEL: NO_MIG_CONFIG}
_REASONS = {
    DEPLOY_LABEL: "keeps the GPU operator's mig-manager off the node",
    MIG_CONFIG_LABEL: "no MIG configuration, so that mig-manager changes nothing if it is enabled later",
}
# Node annotation with the labels' values before the first run, as JSON. A label that did not exist is null. The request
# that changes the labels also writes this annotation, so that no label changes without a record.
LABELS_BEFORE = "openfleet.gpu/labels-before"
# Pattern for the ConfigMap's keys that the collection writes.
OWN_KEY = re.compile(r"openfleet-[0-9a-f]{16}")
_COUNT = re.compile(r"[0-9]{1,9}")


class KubernetesBackend:
    """Base of the backends for Kubernetes.

    If `applies` is true, the backend sets the attributes below. Its offers must only use the labels in `fixed_labels`
    and `config_label`. A record of earlier labels with any other label counts as unreadable.

    fixed_labels  labels with the same value on each node
    early_labels  names of fixed labels that are set before the layout of the host changes
    resource      pattern of the resources that the backend offers in the node's `allocatable`
    leases        true if the backend gives leases of entries with `by: kubernetes` to pods
    """

    key = ""
    applies = False
    component = ""
    # The defaults for NVIDIA's device plugin.
    defaults: Mapping[str, str] = {
        "namespace": "nvidia-device-plugin",
        "config_map": "openfleet-gpu-device-plugin",
        "selector": "app.kubernetes.io/name=nvidia-device-plugin",
        "release": "nvidia-device-plugin",
    }
    chart_values: Mapping[str, Any] = {}
    chart_config: Mapping[str, Any] = {}
    refused = ("", "")
    config_label = ""
    #: Label with a digest of the node's configuration, for a backend whose configuration is not a key of a ConfigMap.
    digest_label = ""
    empty_config = ""
    config_key = ""
    cordons_in = ""
    offered_in = Kind("v1", "Node")
    reads: tuple[Kind, ...] = ()
    fixed_labels: Mapping[str, str] = WITHOUT_MIG_MANAGER
    early_labels: tuple[str, ...] = tuple(WITHOUT_MIG_MANAGER)
    resource = re.compile(r"(?!)")
    leases = False

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
        Labels that another backend has set get their earlier values. If there are problems, `pending` is complete too.
        """
        pending = self.pending_resources(offer, node, objects)
        unchanged = Changes(pending=pending, pending_text=self.pending_text(pending))
        if not isinstance(node, Mapping):
            problem = (
                "The cluster has no node %s. Set gpu_kubernetes_node to the node name (kubectl get nodes). "
                "Nothing was changed." % place.node
            )
            return dataclasses.replace(unchanged, problems=(problem,))
        labels, before = labels_of(node), self._before(node)
        if before is None:
            problem = (
                "node %s: the annotation %s with the labels from before the first run is not readable. Check it, then remove it "
                "(kubectl annotate node %s %s-). Nothing was changed."
                % (place.node, LABELS_BEFORE, place.node, LABELS_BEFORE)
            )
            return dataclasses.replace(unchanged, problems=(problem,))
        desired: dict[str, str | None] = {
            name: value for name, value in offer["labels"].items() if labels.get(name) != value
        }
        unrecorded = {name: labels.get(name) for name in desired if name not in before}
        own = (self.config_label, self.digest_label, *self.fixed_labels, *offer["labels"])
        former = {name: value for name, value in before.items() if name not in own}
        desired.update((name, value) for name, value in former.items() if _is_own(name, labels.get(name, "")))
        record = {name: value for name, value in {**before, **unrecorded}.items() if name not in former}
        data, problems = self._data(offer, config_map, place)
        subject = "the entry of node %s" % place.node if self.config_key else "key %s" % offer["config_name"]
        lines = label_lines(place.node, desired, labels)
        lines += ["ConfigMap %s/%s: write %s" % (place.namespace, place.config_map, subject)] * len(data)
        return dataclasses.replace(
            unchanged,
            labels=desired,
            annotations={LABELS_BEFORE: _record(record)} if record != before else {},
            opt_out=self._opt_out(desired, before, unrecorded),
            data=data,
            restart=bool(pending and self.component) and self.config_label not in desired,
            problems=(*self._other_offers(offer, node, place, objects), *problems),
            lines=tuple(lines),
        )

    def _data(self, offer: Mapping[str, Any], config_map: Any, place: Place) -> tuple[dict[str, str], list[str]]:
        """Return the keys of the ConfigMap to write with their content, and the problems."""
        current = texts(config_map, "data")
        if not self.config_key:
            key, content = offer["config_name"], config_text(offer["config"])
            return {} if not key or current.get(key) == content else {key: content}, []
        rows = offer["config"].get("nodeconfig", ())
        if not rows:
            return {}, []
        content, problem = self.merged(config_map, {place.node: rows[0]})
        if problem:
            return {}, ["node %s: ConfigMap %s/%s: %s" % (place.node, place.namespace, place.config_map, problem)]
        return {} if content == current.get(self.config_key) else {self.config_key: content}, []

    def seen(self, _node: Any, _objects: Sequence[Any], _names: re.Pattern[str]) -> Seen | None:
        """Return what the component offers on the node now, or None.

        `_objects` are objects of the node that the run has read. `_names` is the pattern of the resources of the backend that
        asks: resources with the same name prove nothing.
        """
        return None

    def _other_offers(self, offer: Mapping[str, Any], node: Any, place: Place, objects: Sequence[Any]) -> Iterator[str]:
        """Yield problems with other components that offer GPUs of this offer."""
        others = (each.seen(node, objects, self.resource) for each in _backends() if each.key != self.key)
        article = "" if self.component == "HAMi" else "the "
        yield from in_cluster(
            place.node, article + self.component, offer.get("offered", ()), [each for each in others if each]
        )

    def removal(
        self,
        name: str,
        nodes: Sequence[Any],
        config_map: Any,
        objects: Sequence[Any] = (),
        _removed: frozenset[str] = frozenset(),
    ) -> Removal:
        """Return the changes that undo earlier changes of the node `name`.

        `nodes` contains this node and all nodes that have `config_label`. Only labels that are recorded in LABELS_BEFORE are
        restored. A label that someone else has changed in the meantime is kept.
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
        back = {label: value for label, value in before.items() if _is_own(label, labels.get(label, ""))}
        used = {labels_of(other).get(self.config_label) for other_name, other in by_name.items() if other_name != name}
        used.add(back.get(self.config_label, labels.get(self.config_label)))
        keys = [key for key in texts(config_map, "data") if OWN_KEY.fullmatch(key) and key not in used]
        return Removal(back, {LABELS_BEFORE: None} if before else {}, dict.fromkeys(sorted(keys)))

    def merged(self, config_map: Any, entries: Mapping[str, Mapping[str, Any] | None]) -> tuple[str, str]:
        """Return the new content of `config_key`, and a problem or an empty text."""
        try:
            return node_config.merged(texts(config_map, "data").get(self.config_key, node_config.EMPTY), entries), ""
        except node_config.UnreadableError as error:
            cure = "Repair it, or delete the key to let the role create it. Nothing was changed."
            return "", "%s is not readable: %s. %s" % (self.config_key, text(str(error), 200), cure)

    def pending_resources(
        self, offer: Mapping[str, Any], node: Any, _objects: Sequence[Any]
    ) -> dict[str, tuple[int, int]]:
        """Return the resources whose allocatable number differs from the plan.

        The result maps names to (planned, offered). A resource that is not planned must be 0 or absent. After a change of
        instances, old and new resources can be allocatable at the same time
        (https://github.com/NVIDIA/k8s-device-plugin/issues/240).
        """
        return differing(offer["resources"], allocatable(node, self.resource))

    def shared_reads(self, _scheduler: tuple[str, str]) -> tuple[Read, ...]:
        """Return no objects, because the backend's nodes share none."""
        return ()

    def shared(
        self,
        _removed: frozenset[str],
        _nodes: Sequence[Any],
        _objects: Mapping[Read, Sequence[Any] | None],
    ) -> Shared:
        """Return no changes, because there are no shared objects."""
        return Shared()

    def pending_text(self, pending: Mapping[str, Sequence[int]]) -> str:
        """Return the resources that differ from the plan, as text.

        If the numbers show the cause, the text includes the cause and the fix.
        """
        parts = ["%s %d (planned %d)" % (name, offered, planned) for name, (planned, offered) in pending.items()]
        return ", ".join(filter(None, [*parts, self.cause(pending)]))

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
        if not isinstance(recorded, dict) or not all(map(_is_label, recorded)):
            return None
        return recorded if all(value is None or isinstance(value, str) for value in recorded.values()) else None

    def _opt_out(
        self, desired: Mapping[str, str | None], before: Mapping[str, str | None], unrecorded: Mapping[str, str | None]
    ) -> dict[str, Any]:
        early = {name: desired[name] for name in self.early_labels if name in desired}
        if not early:
            return {}
        metadata: dict[str, Any] = {"labels": early}
        new = {name: unrecorded[name] for name in early if name in unrecorded}
        if new:
            metadata["annotations"] = {LABELS_BEFORE: _record({**before, **new})}
        return metadata


def label_lines(node: str, desired: Mapping[str, str | None], current: Mapping[str, str] | None = None) -> list[str]:
    """Return a line of the plan for each label, with its purpose.

    A label with the value None is removed. If the labels of the node are known (`current`), the line includes the previous value.
    """
    lines = []
    for name, value in desired.items():
        was = "" if current is None else "was %s" % text(current[name], 63) if name in current else "new"
        notes = "; ".join(filter(None, [was, _REASONS.get(name, "")]))
        lines.append("node %s: label %s: %s%s" % (node, name, value or "removed", " (%s)" % notes if notes else ""))
    return lines


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


def _backends() -> Iterator[KubernetesBackend]:
    """Yield all backends for Kubernetes.

    A node may have labels of an earlier backend.
    """
    return (each for each in map(backend, KEYS) if isinstance(each, KubernetesBackend))


def _is_label(name: str) -> bool:
    return any(name and name in (each.config_label, each.digest_label, *each.fixed_labels) for each in _backends())


def _is_own(label: str, value: str) -> bool:
    """Return whether a backend sets the label to this value."""
    return any(
        OWN_KEY.fullmatch(value)
        if label in (each.config_label, each.digest_label)
        else each.fixed_labels.get(label) == value
        for each in _backends()
    )


def config_text(config: Mapping[str, Any]) -> str:
    """Return a configuration file as JSON. JSON is valid YAML.

    Equal configurations have equal texts.
    """
    return json.dumps(config, sort_keys=True, indent=2) + "\n"


def _record(before: Mapping[str, str | None]) -> str:
    return json.dumps(before, sort_keys=True)
