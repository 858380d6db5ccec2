# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Take a Kubernetes node out of service for a drain, and bring it back, each by one JSON patch. Pure.

A patch tests what was looked at (https://www.rfc-editor.org/rfc/rfc6902), so that the cluster refuses it where an administrator
changed that since. What a drain changes is noted on the node in the same request, by annotations. The kubelet of a node can write
these too, so only labels that the inventory pauses are given back.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Mapping

from .cluster import annotations_of, labels_of

#: Annotation of a node that a drain cordoned. Its value is the name of the host in the inventory.
CORDONED = "openfleet.gpu/cordoned-for-drain"
#: Annotation of a node: the values of labels that a drain paused, as JSON.
LABELS_BEFORE = "openfleet.gpu/labels-before-drain"
#: https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set
_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")


@dataclass(frozen=True)
class NodePatch:
    """`operations` of a JSON patch, none where nothing is to change; `paused` names labels that stay so for want of a record."""

    operations: tuple[Mapping[str, Any], ...] = ()
    paused: tuple[str, ...] = ()


def drained(node: Any, host: str, labels: Mapping[str, str]) -> NodePatch:
    """Return the patch that cordons a node and gives its labels the values of `labels`. Labels that it lacks are left."""
    annotations, current = annotations_of(node), labels_of(node)
    operations: list[Mapping[str, Any]] = []
    if not _is_cordoned(node):
        operations += [
            _test("/spec/unschedulable", None),
            _add(_annotation(CORDONED), host),
            _add("/spec/unschedulable", True),
        ]
    pausing = {name: value for name, value in labels.items() if name in current and current[name] != value}
    if pausing:
        written = annotations.get(LABELS_BEFORE)
        before = {**_recorded(written, labels), **{name: current[name] for name in pausing}}
        operations += [
            _test(_annotation(LABELS_BEFORE), written),
            _add(_annotation(LABELS_BEFORE), json.dumps(before, sort_keys=True)),
        ]
        for name, value in pausing.items():
            operations += [_test(_label(name), current[name]), _add(_label(name), value)]
    if operations and not annotations:
        operations[:0] = [_test("/metadata/annotations", None), _add("/metadata/annotations", {})]
    return NodePatch(tuple(operations))


def resumed(node: Any, labels: Mapping[str, str]) -> NodePatch:
    """Return the patch that uncordons a node which a drain cordoned, and gives back the labels that are still paused."""
    annotations, current = annotations_of(node), labels_of(node)
    operations: list[Mapping[str, Any]] = []
    if CORDONED in annotations:
        operations += [*_removed(CORDONED, annotations), _add("/spec/unschedulable", False)]
    before = _recorded(annotations.get(LABELS_BEFORE), labels)
    if LABELS_BEFORE in annotations:
        operations += _removed(LABELS_BEFORE, annotations)
    paused = [name for name, value in labels.items() if current.get(name) == value]
    for name in paused:
        if name in before:
            operations += [_test(_label(name), current[name]), _add(_label(name), before[name])]
    return NodePatch(tuple(operations), tuple(name for name in paused if name not in before))


def _is_cordoned(node: Any) -> bool:
    spec = node.get("spec") if isinstance(node, Mapping) else None
    return isinstance(spec, Mapping) and spec.get("unschedulable") is True


def _recorded(written: str | None, labels: Mapping[str, str]) -> dict[str, str]:
    """Return the recorded values of these labels that a label can have, and that do not pause it."""
    try:
        found = json.loads(written or "{}")
    except ValueError:
        return {}
    entries = found.items() if isinstance(found, dict) else ()
    return {
        name: value
        for name, value in entries
        if name in labels and isinstance(value, str) and _VALUE.fullmatch(value) and value != labels[name]
    }


def _removed(annotation: str, annotations: Mapping[str, str]) -> list[Mapping[str, Any]]:
    path = _annotation(annotation)
    return [_test(path, annotations[annotation]), {"op": "remove", "path": path}]


def _test(path: str, value: Any) -> Mapping[str, Any]:
    return {"op": "test", "path": path, "value": value}


def _add(path: str, value: Any) -> Mapping[str, Any]:
    return {"op": "add", "path": path, "value": value}


def _annotation(name: str) -> str:
    return "/metadata/annotations/" + _escaped(name)


def _label(name: str) -> str:
    return "/metadata/labels/" + _escaped(name)


def _escaped(name: str) -> str:
    """https://www.rfc-editor.org/rfc/rfc6901"""
    return name.replace("~", "~0").replace("/", "~1")
