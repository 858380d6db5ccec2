# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Describe which pods are ready, and why the others are not. Pure.

https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/

API objects are untrusted. A value without the expected format counts as absent.
"""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from ...host_values import text

_LENGTH = 200


def states(pods: Sequence[Any]) -> str:
    """Return the state of each pod, or "no pod"."""
    return "; ".join(_state(pod) for pod in pods if isinstance(pod, Mapping)) or "no pod"


def _state(pod: Mapping[str, Any]) -> str:
    status = _mapping(pod.get("status"))
    conditions = _mappings(status.get("conditions"))
    if any((each.get("type"), each.get("status")) == ("Ready", "True") for each in conditions):
        why = "ready"
    else:
        containers = [*_mappings(status.get("initContainerStatuses")), *_mappings(status.get("containerStatuses"))]
        reasons = [*filter(None, map(_container, containers))]
        if not reasons:
            # Remove duplicates, because the scheduler and the kubelet write the same reason to several conditions.
            messages = (_words(each.get("message")) for each in conditions if each.get("status") == "False")
            reasons = list(dict.fromkeys(messages))
        why = ", ".join(filter(None, reasons)) or _words(status.get("phase")) or "unknown"
    return "pod %s: %s" % (_words(_mapping(pod.get("metadata")).get("name")), why)


def _container(status: Mapping[str, Any]) -> str:
    """Return why a container is not running.

    Returns "" if it runs or has completed.
    """
    state = _mapping(status.get("state"))
    waiting, ended = _mapping(state.get("waiting")), _mapping(state.get("terminated"))
    name = _words(status.get("name"))
    if waiting:
        return "container %s waits (%s)" % (name, _reason(waiting))
    if ended and ended.get("exitCode") != 0:
        return "container %s has ended (%s)" % (name, _reason(ended))
    return ""


def _reason(state: Mapping[str, Any]) -> str:
    words = [_words(state.get(key)) for key in ("reason", "message")]
    return ": ".join(filter(None, words)) or "no reason given"


def _words(value: Any) -> str:
    return text(value, _LENGTH) if isinstance(value, str) else ""


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []
