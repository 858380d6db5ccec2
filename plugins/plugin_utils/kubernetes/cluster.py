# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare a cluster's node with the node's mapping, for NVIDIA's device plugin.

Pure.

Objects of the cluster are untrusted: values that do not have the API's form count as absent.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Mapping, Sequence

from ..host_values import text
from .device_plugin import CONFIG_LABEL
from .model import WITHOUT_MIG_MANAGER

# Node annotation with the label values from before the first run, as JSON, null for a missing label. The request that changes the
# labels also writes it, so that changed labels always have a record.
LABELS_BEFORE = "openfleet.gpu/labels-before"
# Keys of the ConfigMap that belong to the collection (device_plugin.config_name).
OWN_KEY = re.compile(r"openfleet-[0-9a-f]{16}")
# Resources of the device plugin: GPUs and MIG devices by profile, also renamed by `renameByDefault`.
_PLUGIN_RESOURCE = re.compile(r"nvidia\.com/(?:gpu|mig-[0-9a-z.-]{1,60})(?:\.shared)?")
# https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_COUNT = re.compile(r"[0-9]{1,9}")
# Suffix of a profile after its size in resource names: mig-1g.10gb.me, mig-1g.24gb-me, mig-1g.24gb.gfx.
_VARIANT = re.compile(r"(?<=gb)[.-](?:me(?:\.all)?|gfx)(?=$|\.shared$)")
# Before 0.20 the plugin matches patterns anywhere in a profile name, so "1g.10gb+me" matches 1g.10gb first
# (https://github.com/NVIDIA/k8s-device-plugin/pull/1807).
_MERGED = (
    "because the device plugin before release 0.20 counts instances with +me, -me or +gfx as plain ones: install release 0.20 "
    "or later"
)
(_MIG_MANAGER_LABEL,) = WITHOUT_MIG_MANAGER


@dataclass(frozen=True)
class Place:
    """Node name, and location of the device plugin's configuration."""

    node: str
    namespace: str
    config_map: str


@dataclass(frozen=True)
class Changes:
    """Pending changes of a node.

    labels       node labels to set
    before       value of the annotation LABELS_BEFORE to set with them, or empty if it does not change
    opt_out      node metadata that keeps mig-manager off, to set before the layout changes, or empty if already set
    key          missing key of the ConfigMap, with its `content`, or empty
    pending      resources that differ: name, (planned, offered)
    problems     reasons against any change
    lines        lines of the plan
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    before: str = ""
    opt_out: Mapping[str, Any] = field(default_factory=dict)
    key: str = ""
    content: str = ""
    pending: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()

    @property
    def restart(self) -> bool:
        """Whether the plugin must restart to notice changed devices, because no label changes."""
        return bool(self.pending) and CONFIG_LABEL not in self.labels


def changes(mapping: Mapping[str, Any], node: Any, config_map: Any, place: Place) -> Changes:
    """Return the changes that make a node match its mapping (request.answer).

    `node` and `config_map` are objects of the API, or None. A missing ConfigMap is created.
    """
    if not isinstance(node, Mapping):
        problem = (
            "The cluster has no node %s. Set gpu_kubernetes_node to the node name (kubectl get nodes). "
            "Nothing was changed." % place.node
        )
        return Changes(problems=(problem,))
    labels, before = labels_of(node), _before(node)
    if before is None:
        problem = (
            "node %s: the annotation %s with the labels from before the first run is not readable. Check it, then remove it "
            "(kubectl annotate node %s %s-). Nothing was changed."
            % (place.node, LABELS_BEFORE, place.node, LABELS_BEFORE)
        )
        return Changes(problems=(problem,))
    desired = {name: value for name, value in mapping["labels"].items() if labels.get(name) != value}
    unrecorded = {name: labels.get(name) for name in desired if name not in before}
    key, content = mapping.get("config_name", ""), config_text(mapping["config"])
    has_key = not key or _texts(config_map, "data").get(key) == content
    pending = pending_resources(mapping["resources"], node)
    lines = [
        "node %s: label %s: %s (%s)" % (place.node, name, value, _was(labels, name)) for name, value in desired.items()
    ]
    if not has_key:
        lines.append("ConfigMap %s/%s: write key %s" % (place.namespace, place.config_map, key))
    return Changes(
        desired,
        _record({**before, **unrecorded}) if unrecorded else "",
        _opt_out(desired, before, unrecorded),
        "" if has_key else key,
        "" if has_key else content,
        pending,
        lines=tuple(lines),
    )


def config_text(config: Mapping[str, Any]) -> str:
    """Return the plugin's configuration file as JSON, which is YAML.

    Equal configurations give equal texts.
    """
    return json.dumps(config, sort_keys=True, indent=2) + "\n"


def pending_resources(planned: Mapping[str, int], node: Any) -> dict[str, tuple[int, int]]:
    """Return the resources whose allocatable number differs from the plan: (planned, offered) by name.

    After a change of instances, old and new resources can be allocatable at the same time: unplanned resources must be 0 or
    absent (https://github.com/NVIDIA/k8s-device-plugin/issues/240).
    """
    status = node.get("status") if isinstance(node, Mapping) else None
    offered = {
        name: int(number)
        for name, number in _texts(status, "allocatable").items()
        if _PLUGIN_RESOURCE.fullmatch(name) and _COUNT.fullmatch(number)
    }
    names = [*planned, *sorted(set(offered) - set(planned))]
    pairs = {name: (planned.get(name, 0), offered.get(name, 0)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def pending_text(pending: Mapping[str, Sequence[int]]) -> str:
    """Return the differing resources as text, with the fix if the numbers show the cause."""
    parts = ["%s %d (planned %d)" % (name, offered, planned) for name, (planned, offered) in pending.items()]
    if _variants_are_merged(pending):
        parts.append(_MERGED)
    return ", ".join(parts)


def _variants_are_merged(pending: Mapping[str, Sequence[int]]) -> bool:
    """Return whether the missing instances equal the surplus of another profile of the same size."""
    balance: Counter[str] = Counter()
    missing = []
    for name, (planned, offered) in pending.items():
        size = _VARIANT.sub("", name)
        balance[size] += planned - offered
        if size != name and planned > offered:
            missing.append(size)
    return any(balance[size] == 0 for size in missing)


@dataclass(frozen=True)
class Removal:
    """Undo of the changes of a node: `labels` to set (None removes one), and unused `keys` of the ConfigMap.

    `recorded`: the node has the annotation LABELS_BEFORE, which is removed too.
    """

    labels: Mapping[str, str | None] = field(default_factory=dict)
    recorded: bool = False
    keys: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def removal(name: str, nodes: Sequence[Any], config_map: Any) -> Removal:
    """Return the undo of a node, given all nodes with the configuration's label and the node itself.

    Only labels recorded in LABELS_BEFORE are restored. Labels that someone else changed since are kept.
    """
    by_name = {_name(node): node for node in nodes if isinstance(node, Mapping)}
    node = by_name.get(name, {})
    labels, before = labels_of(node), _before(node)
    if before is None:
        problem = (
            "node %s: the annotation %s is not readable. Remove it and the labels by hand. Nothing was changed."
            % (
                name,
                LABELS_BEFORE,
            )
        )
        return Removal(problems=(problem,))
    back = {label: value for label, value in before.items() if _is_own(label, labels.get(label, ""))}
    used = {labels_of(other).get(CONFIG_LABEL) for other_name, other in by_name.items() if other_name != name}
    used.add(back.get(CONFIG_LABEL, labels.get(CONFIG_LABEL)))
    keys = [key for key in _texts(config_map, "data") if OWN_KEY.fullmatch(key) and key not in used]
    return Removal(back, bool(before), tuple(sorted(keys)))


def daemonset_pods(pods: Sequence[Any]) -> list[str]:
    """Return the names of pods that a DaemonSet owns and recreates."""
    names = []
    for pod in pods:
        metadata = pod.get("metadata") if isinstance(pod, Mapping) else None
        owners = metadata.get("ownerReferences") if isinstance(metadata, Mapping) else None
        kinds = [_texts({"owner": owner}, "owner").get("kind") for owner in owners or ()]
        name = _name(pod) if "DaemonSet" in kinds else ""
        if _NAME.fullmatch(name):
            names.append(name)
    return names


def labels_of(node: Any) -> dict[str, str]:
    """Return the labels of an object of the API."""
    return _texts(node.get("metadata") if isinstance(node, Mapping) else None, "labels")


def annotations_of(node: Any) -> dict[str, str]:
    """Return the annotations of an object of the API."""
    return _texts(node.get("metadata") if isinstance(node, Mapping) else None, "annotations")


def _is_own(label: str, value: str) -> bool:
    return OWN_KEY.fullmatch(value) is not None if label == CONFIG_LABEL else WITHOUT_MIG_MANAGER.get(label) == value


def _before(node: Mapping[str, Any]) -> dict[str, str | None] | None:
    """Return the recorded label values, or None if the annotation is not readable."""
    written = annotations_of(node).get(LABELS_BEFORE)
    if written is None:
        return {}
    try:
        recorded = json.loads(written)
    except ValueError:
        return None
    if not isinstance(recorded, dict) or not set(recorded) <= {CONFIG_LABEL, _MIG_MANAGER_LABEL}:
        return None
    return recorded if all(value is None or isinstance(value, str) for value in recorded.values()) else None


def _opt_out(
    desired: Mapping[str, str], before: Mapping[str, str | None], unrecorded: Mapping[str, str | None]
) -> dict[str, Any]:
    if _MIG_MANAGER_LABEL not in desired:
        return {}
    metadata: dict[str, Any] = {"labels": {_MIG_MANAGER_LABEL: desired[_MIG_MANAGER_LABEL]}}
    if _MIG_MANAGER_LABEL in unrecorded:
        record = _record({**before, _MIG_MANAGER_LABEL: unrecorded[_MIG_MANAGER_LABEL]})
        metadata["annotations"] = {LABELS_BEFORE: record}
    return metadata


def _record(before: Mapping[str, str | None]) -> str:
    return json.dumps(before, sort_keys=True)


def _was(labels: Mapping[str, str], name: str) -> str:
    return "was %s" % text(labels[name], 63) if name in labels else "new"


def _name(node: Mapping[str, Any]) -> str:
    return _texts(node, "metadata").get("name", "")


def _texts(parent: Any, key: str) -> dict[str, str]:
    """Return the entries of a nested mapping whose keys and values are texts."""
    entries = parent.get(key) if isinstance(parent, Mapping) else None
    if not isinstance(entries, Mapping):
        return {}
    return {name: value for name, value in entries.items() if isinstance(name, str) and isinstance(value, str)}
