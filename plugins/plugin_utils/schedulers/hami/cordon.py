# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Create the JSON patches that cordon and release single GPUs of a node. Pure.

HAMi's scheduler assigns no new pods to GPUs in the annotation hami.io/device-cordon. Pods on these GPUs keep running.
The scheduler reads this annotation only together with the node's registration. It does so if the registration changes,
or if the value of hami.io/node-handshake does not contain "Requesting". In the second case, it writes
"Requesting_<time>" (CheckHealth in pkg/device/devices.go and Scheduler.register in pkg/scheduler/scheduler.go of HAMi
2.10, which runs every 15 s). So a patch also writes the handshake as older device plugins do, "Reported_<time>"
(docs/develop/protocol.md). When the scheduler has replaced this value, it knows the cordon.

A patch first tests the values that were read. If someone else has changed one of them, the cluster refuses the patch.
"""

from __future__ import annotations

import json
from typing import Any, Mapping, Sequence

from ..kubernetes.api_objects import annotations_of
from ..kubernetes.json_patch import add, annotation_path, remove, test

CORDON = "hami.io/device-cordon"
HANDSHAKE = "hami.io/node-handshake"
# Annotation that records which GPUs the role has cordoned, as JSON. GPUs that someone else cordons stay cordoned.
OWN = "openfleet.gpu/cordoned-devices"
# The scheduler compares only the first part of the value.
_UNREAD, _READ = "Reported_openfleet.gpu", "Requesting"


def cordoned(node: Any) -> tuple[str, ...]:
    """Return the UUIDs of cordoned GPUs, in their order."""
    parts = (part.strip() for part in annotations_of(node).get(CORDON, "").split(","))
    return tuple(dict.fromkeys(part for part in parts if part))


def own(node: Any) -> tuple[str, ...]:
    """Return the UUIDs of GPUs that the role has cordoned, in their order.

    An unreadable record, and GPUs that are no longer cordoned, count as absent.
    """
    try:
        record = json.loads(annotations_of(node).get(OWN, "[]"))
    except ValueError:
        return ()
    current = cordoned(node)
    return tuple(uuid for uuid in record if uuid in current) if isinstance(record, list) else ()


def cordon(node: Any, uuids: Sequence[str]) -> tuple[Mapping[str, Any], ...]:
    """Return the patch that cordons GPUs, except those already cordoned."""
    new = [uuid for uuid in uuids if uuid not in cordoned(node)]
    if not new:
        return ()
    return (
        *_changed(node, CORDON, ",".join([*cordoned(node), *new])),
        *_changed(node, OWN, json.dumps([*own(node), *new])),
        *_changed(node, HANDSHAKE, _UNREAD),
    )


def release(node: Any) -> tuple[Mapping[str, Any], ...]:
    """Return the patch that releases the GPUs that the role has cordoned."""
    if OWN not in annotations_of(node):
        return ()
    kept = [uuid for uuid in cordoned(node) if uuid not in own(node)]
    operations = [*_changed(node, OWN, None)]
    if own(node):
        operations += [*_changed(node, CORDON, ",".join(kept) or None), *_changed(node, HANDSHAKE, _UNREAD)]
    return tuple(operations)


def is_read(node: Any) -> bool:
    """Return whether the scheduler has read the node since the last patch."""
    return _READ in annotations_of(node).get(HANDSHAKE, "")


def _changed(node: Any, name: str, value: str | None) -> list[Mapping[str, Any]]:
    """Return the operations that set an annotation. None removes it."""
    current = annotations_of(node).get(name)
    if value is None:
        return [] if current is None else [test(annotation_path(name), current), remove(annotation_path(name))]
    return [test(annotation_path(name), current), add(annotation_path(name), value)]
