# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare what a cluster has of a node with the node's mapping, for NVIDIA's device plugin. Pure.

What the cluster's objects say is data: values of another form than the API's count as absent.
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

#: Annotation of a node: the values that labels had before the first run changed them, as JSON; null where there was none. It is
#: written in the request that changes the labels, so that it is there whenever they are changed.
LABELS_BEFORE = "openfleet.gpu/labels-before"
#: Of the keys in the ConfigMap only these are the collection's (device_plugin.config_name).
OWN_KEY = re.compile(r"openfleet-[0-9a-f]{16}")
#: What the device plugin publishes: GPUs, MIG devices by profile, and both under the name that `renameByDefault` gives.
_PLUGIN_RESOURCE = re.compile(r"nvidia\.com/(?:gpu|mig-[0-9a-z.-]{1,60})(?:\.shared)?")
#: https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_COUNT = re.compile(r"[0-9]{1,9}")
#: What a profile has behind its size, in the name of its resource: mig-1g.10gb.me, mig-1g.24gb-me, mig-1g.24gb.gfx.
_VARIANT = re.compile(r"(?<=gb)[.-](?:me(?:\.all)?|gfx)(?=$|\.shared$)")
#: Before 0.20 the plugin takes a pattern for a match anywhere in a profile's name, and 1g.10gb is the first that "1g.10gb+me"
#: matches (https://github.com/NVIDIA/k8s-device-plugin/pull/1807).
_MERGED = (
    "so that instances with +me, -me or +gfx are counted as those without: the device plugin does so before release 0.20, "
    "install that or a later one"
)
(_MIG_MANAGER_LABEL,) = WITHOUT_MIG_MANAGER


@dataclass(frozen=True)
class Place:
    """Where the device plugin's configuration is, and what the cluster calls the node."""

    node: str
    namespace: str
    config_map: str


@dataclass(frozen=True)
class Changes:
    """What a node lacks of its mapping.

    labels       to set on the node
    before       the annotation LABELS_BEFORE with which they are set; empty where it stays
    opt_out      metadata of the node that keeps mig-manager off it, for ahead of the layout; empty where it is there
    key          of the configuration that the ConfigMap lacks, with its `content`; empty where it has it
    pending      resources that the node does not offer as planned: name, (planned, offered)
    problems     why nothing may be changed
    lines        for a plan
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
        """Whether the plugin has to start again: no label moves, by which it would notice that its devices changed."""
        return bool(self.pending) and CONFIG_LABEL not in self.labels


def changes(mapping: Mapping[str, Any], node: Any, config_map: Any, place: Place) -> Changes:
    """Return what has to change until the cluster's node is as the mapping (request.answer) says.

    `node` and `config_map` are the API's objects, None where the cluster has none. Without a ConfigMap it is made.
    """
    if not isinstance(node, Mapping):
        problem = (
            "The cluster has no node %s. Name the node in gpu_kubernetes_node (kubectl get nodes). "
            "Nothing was changed." % place.node
        )
        return Changes(problems=(problem,))
    labels, before = labels_of(node), _before(node)
    if before is None:
        problem = (
            "node %s: the annotation %s is not readable. It holds the labels from before the first run. Look at it, then remove "
            "it (kubectl annotate node %s %s-). Nothing was changed."
            % (place.node, LABELS_BEFORE, place.node, LABELS_BEFORE)
        )
        return Changes(problems=(problem,))
    wanted = {name: value for name, value in mapping["labels"].items() if labels.get(name) != value}
    unrecorded = {name: labels.get(name) for name in wanted if name not in before}
    key, content = mapping.get("config_name", ""), config_text(mapping["config"])
    has_key = not key or _texts(config_map, "data").get(key) == content
    pending = pending_resources(mapping["resources"], node)
    lines = [
        "node %s: label %s: %s (%s)" % (place.node, name, value, _was(labels, name)) for name, value in wanted.items()
    ]
    if not has_key:
        lines.append("ConfigMap %s/%s: write key %s" % (place.namespace, place.config_map, key))
    return Changes(
        wanted,
        _record({**before, **unrecorded}) if unrecorded else "",
        _opt_out(wanted, before, unrecorded),
        "" if has_key else key,
        "" if has_key else content,
        pending,
        lines=tuple(lines),
    )


def config_text(config: Mapping[str, Any]) -> str:
    """Return the plugin's configuration file. JSON is YAML, and the same configuration is always the same text."""
    return json.dumps(config, sort_keys=True, indent=2) + "\n"


def pending_resources(planned: Mapping[str, int], node: Any) -> dict[str, tuple[int, int]]:
    """Return the plugin's resources whose allocatable number is not the planned one: (planned, offered) by name.

    After a change of instances old resources and new ones can be allocatable at the same time: a resource that is not planned
    has to be 0 or gone (https://github.com/NVIDIA/k8s-device-plugin/issues/240).
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
    """Return the resources that differ in words, with the cure where the numbers show what is wrong."""
    found = ["%s %d (planned %d)" % (name, offered, planned) for name, (planned, offered) in pending.items()]
    if _variants_are_merged(pending):
        found.append(_MERGED)
    return ", ".join(found)


def _variants_are_merged(pending: Mapping[str, Sequence[int]]) -> bool:
    """Return whether just those instances are missing that another profile of the same size has too many."""
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
    """How a node gets back what it had: `labels` with None for those to remove, and `keys` of the ConfigMap that no node uses.

    `recorded`: the node has the annotation LABELS_BEFORE, which goes too.
    """

    labels: Mapping[str, str | None] = field(default_factory=dict)
    recorded: bool = False
    keys: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def removal(name: str, nodes: Sequence[Any], config_map: Any) -> Removal:
    """Return what to take off a node, given all nodes of the cluster that have the configuration's label or that name.

    Only labels that the annotation LABELS_BEFORE records are touched. A label that was changed since by others stays.
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
    """Return the names of the pods that a DaemonSet owns, and makes again once they are deleted."""
    found = []
    for pod in pods:
        metadata = pod.get("metadata") if isinstance(pod, Mapping) else None
        owners = metadata.get("ownerReferences") if isinstance(metadata, Mapping) else None
        kinds = [_texts({"owner": owner}, "owner").get("kind") for owner in owners or ()]
        name = _name(pod) if "DaemonSet" in kinds else ""
        if _NAME.fullmatch(name):
            found.append(name)
    return found


def labels_of(node: Any) -> dict[str, str]:
    """Return the labels of an object of the API."""
    return _texts(node.get("metadata") if isinstance(node, Mapping) else None, "labels")


def annotations_of(node: Any) -> dict[str, str]:
    """Return the annotations of an object of the API."""
    return _texts(node.get("metadata") if isinstance(node, Mapping) else None, "annotations")


def _is_own(label: str, value: str) -> bool:
    return OWN_KEY.fullmatch(value) is not None if label == CONFIG_LABEL else WITHOUT_MIG_MANAGER.get(label) == value


def _before(node: Mapping[str, Any]) -> dict[str, str | None] | None:
    """Return the labels' values that the annotation records; None where it cannot be read."""
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
    wanted: Mapping[str, str], before: Mapping[str, str | None], unrecorded: Mapping[str, str | None]
) -> dict[str, Any]:
    if _MIG_MANAGER_LABEL not in wanted:
        return {}
    metadata: dict[str, Any] = {"labels": {_MIG_MANAGER_LABEL: wanted[_MIG_MANAGER_LABEL]}}
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
    """Return the entries of a mapping in an object whose keys and values are texts."""
    found = parent.get(key) if isinstance(parent, Mapping) else None
    if not isinstance(found, Mapping):
        return {}
    return {name: value for name, value in found.items() if isinstance(name, str) and isinstance(value, str)}
