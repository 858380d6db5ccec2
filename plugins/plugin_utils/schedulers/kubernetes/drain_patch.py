# Copyright: (c) openfleet.gpu contributors
# Return a configuration file as JSON, which is also YAML.
#
# Equal configurations have equal texts.
# SPDX-License-Identifier: GPL-3.0-or-later
"""Create the JSON patches that drain and resume a Kubernetes node. Pure.

A patch first tests whether the node still has the values that were read (https://www.rfc-editor.org/rfc/rfc6902). If an
administrator has changed one of them since, the cluster refuses the patch. The patch also records the changes in
annotations. The node's kubelet can write these too, so only labels that the inventory pauses are restored.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Mapping

from .api_objects import annotations_of, labels_of
from .json_patch import add, annotation_path, label_path, remove, test

# Annotation of a node that a drain has cordoned, with the host's inventory name.
CORDONED = "openfleet.gpu/cordoned-for-drain"
# Annotation with the earlier values of labels that a drain changed, as JSON.
LABELS_BEFORE = "openfleet.gpu/labels-before-drain"
# Valid label values: https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set
_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")


@dataclass(frozen=True)
class NodePatch:
    """A JSON patch for a node.

    operations  operations of the patch
    paused      labels that stay paused, because their earlier values are not recorded
    """

    operations: tuple[Mapping[str, Any], ...] = ()
    paused: tuple[str, ...] = ()


def drained(node: Any, host: str, labels: Mapping[str, str]) -> NodePatch:
    """Return the patch that cordons a node and pauses components with labels.

    `labels` has the values that pause components, by label. Labels that the node does not have are skipped.
    """
    annotations, current = annotations_of(node), labels_of(node)
    operations: list[Mapping[str, Any]] = []
    if not _is_cordoned(node):
        operations += [
            test("/spec/unschedulable", None),
            add(annotation_path(CORDONED), host),
            add("/spec/unschedulable", True),
        ]
    pausing = {name: value for name, value in labels.items() if name in current and current[name] != value}
    if pausing:
        written = annotations.get(LABELS_BEFORE)
        before = {**_recorded(written, labels), **{name: current[name] for name in pausing}}
        operations += [
            test(annotation_path(LABELS_BEFORE), written),
            add(annotation_path(LABELS_BEFORE), json.dumps(before, sort_keys=True)),
        ]
        for name, value in pausing.items():
            operations += [test(label_path(name), current[name]), add(label_path(name), value)]
    if operations and not annotations:
        operations[:0] = [test("/metadata/annotations", None), add("/metadata/annotations", {})]
    return NodePatch(tuple(operations))


def resumed(node: Any, labels: Mapping[str, str]) -> NodePatch:
    """Return the patch that uncordons a node and restores its paused labels.

    The node is uncordoned only if a drain cordoned it.
    """
    annotations, current = annotations_of(node), labels_of(node)
    operations: list[Mapping[str, Any]] = []
    if CORDONED in annotations:
        operations += [*_removed(CORDONED, annotations), add("/spec/unschedulable", False)]
    before = _recorded(annotations.get(LABELS_BEFORE), labels)
    if LABELS_BEFORE in annotations:
        operations += _removed(LABELS_BEFORE, annotations)
    paused = [name for name, value in labels.items() if current.get(name) == value]
    for name in paused:
        if name in before:
            operations += [test(label_path(name), current[name]), add(label_path(name), before[name])]
    return NodePatch(tuple(operations), tuple(name for name in paused if name not in before))


def _is_cordoned(node: Any) -> bool:
    spec = node.get("spec") if isinstance(node, Mapping) else None
    return isinstance(spec, Mapping) and spec.get("unschedulable") is True


def _recorded(written: str | None, labels: Mapping[str, str]) -> dict[str, str]:
    """Return these labels' earlier values, as a drain recorded them.

    Leaves out values that are invalid or would pause a component.
    """
    try:
        record = json.loads(written or "{}")
    except ValueError:
        return {}
    entries = record.items() if isinstance(record, dict) else ()
    return {
        name: value
        for name, value in entries
        if name in labels and isinstance(value, str) and _VALUE.fullmatch(value) and value != labels[name]
    }


def _removed(annotation: str, annotations: Mapping[str, str]) -> list[Mapping[str, Any]]:
    path = annotation_path(annotation)
    return [test(path, annotations[annotation]), remove(path)]
