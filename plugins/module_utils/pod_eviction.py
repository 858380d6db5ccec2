# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide which pods of a Kubernetes node to evict: those with given UIDs, where the options allow it. Pure.

The rules are those of `kubectl drain` (k8s.io/kubectl/pkg/drain/filters.go). A pod cannot exempt itself:

- A DaemonSet is its controller if the API has this DaemonSet with this UID, and the selector matches the pod's labels.
- The mirror annotation is believed. The API server refuses to add it to an existing pod, and a kubelet deletes a pod that has it
  without a manifest on the node.
- The phase and the time of deletion are believed: the kubelet and the API server write them.
- Other owners only spare the operator `force`. A made-up one does not keep the pod from going.
"""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from .errors import FleetError
from .foreign_text import text
from .frozen import frozen
from .kubernetes_client import MIRROR, controller_of

#: Longest name of an object (https://kubernetes.io/docs/concepts/overview/working-with-objects/names/).
_MOST_NAME = 253
#: Pods that a message names.
_MOST_PROBLEMS = 20
_ENDED = ("Succeeded", "Failed")


class EvictionError(FleetError):
    """Pods cannot be evicted, or the cluster does not answer."""


@frozen
class Pod:
    """A pod that is to go. `is_going`: it was evicted or deleted before, and has not ended yet."""

    namespace: str
    name: str
    uid: str
    is_going: bool = False

    def __str__(self) -> str:
        return "%s/%s" % (self.namespace, self.name)


@frozen
class Options:
    """Which pods may go, and how. As kubernetes.core.k8s_drain has them."""

    force: bool = False
    ignore_daemonsets: bool = False
    delete_emptydir_data: bool = False
    disable_eviction: bool = False
    terminate_grace_period: int | None = None


def pods_to_evict(
    node: str,
    pods: Sequence[Mapping[str, Any]],
    uids: Sequence[str] | None,
    options: Options,
    daemonsets: Sequence[Mapping[str, Any]] = (),
) -> list[Pod]:
    """Return the pods with these UIDs that have to go, in the order of their names; of None, all but mirror pods.

    `pods` are all of the node, as the API has them. `daemonsets` are those of their controllers that exist
    (`kubernetes_client.daemonsets_of`).
    Raises EvictionError, before any goes, with all pods that may not.
    """
    wanted = [pod for pod in pods if uids is None or pod["metadata"].get("uid") in set(uids)]
    chosen, problems = [], []
    for pod in wanted:
        if (pod.get("status") or {}).get("phase") in _ENDED:
            continue
        metadata = pod["metadata"]
        if uids is None and MIRROR in (metadata.get("annotations") or {}):
            # Only its file on the host ends it.
            continue
        is_daemonsets = is_of_daemonset(pod, daemonsets)
        if is_daemonsets and options.ignore_daemonsets:
            # It would be made again at once.
            continue
        names = (text(metadata[key], _MOST_NAME) for key in ("namespace", "name", "uid"))
        found = Pod(*names, bool(metadata.get("deletionTimestamp")))
        problem = None if found.is_going else _problem(pod, is_daemonsets, options)
        if problem:
            problems.append("%s %s" % (found, problem))
        chosen.append(found)
    if problems:
        cure = "Delete the pods yourself, or allow it in gpu_drain_kubernetes_delete_options. No pod was evicted."
        raise EvictionError("Kubernetes node %s" % node, _joined(problems), cure)
    return sorted(chosen, key=str)


def _joined(problems: Sequence[str]) -> str:
    more = ["and %d more pods" % (len(problems) - _MOST_PROBLEMS)] if len(problems) > _MOST_PROBLEMS else []
    return "; ".join([*problems[:_MOST_PROBLEMS], *more])


def is_of_daemonset(pod: Mapping[str, Any], daemonsets: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether one of the DaemonSets, which exist, is a pod's controller."""
    metadata = pod["metadata"]
    owner = controller_of(metadata)
    named = (metadata["namespace"], owner.get("name"), owner.get("uid"))
    return owner.get("kind") == "DaemonSet" and any(
        named == (each["namespace"], each["name"], each["uid"])
        and _selects(each["selector"], metadata.get("labels") or {})
        for each in daemonsets
    )


def _selects(selector: Any, labels: Mapping[str, Any]) -> bool:
    """Return whether a selector matches labels (apimachinery, LabelSelector). An empty one selects nothing here."""
    if not isinstance(selector, Mapping):
        return False
    wanted, rules = selector.get("matchLabels") or {}, selector.get("matchExpressions") or []
    if not isinstance(wanted, Mapping) or not isinstance(rules, list) or not (wanted or rules):
        return False
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        _meets(rule, labels) for rule in rules
    )


def _meets(rule: Any, labels: Mapping[str, Any]) -> bool:
    if not isinstance(rule, Mapping):
        return False
    key, operator, values = rule.get("key"), rule.get("operator"), rule.get("values") or []
    if operator == "In":
        return key in labels and labels[key] in values
    if operator == "NotIn":
        return labels.get(key) not in values
    return {"Exists": key in labels, "DoesNotExist": key not in labels}.get(operator, False)


def _problem(pod: Mapping[str, Any], is_daemonsets: bool, options: Options) -> str | None:
    """Return why a pod may not be evicted."""
    metadata = pod["metadata"]
    if MIRROR in (metadata.get("annotations") or {}):
        return "is a static pod, which only its file on the host ends"
    if is_daemonsets:
        return "is a DaemonSet's, which would make it again (ignore_daemonsets)"
    kinds = {owner.get("kind") for owner in metadata.get("ownerReferences") or ()}
    if not kinds - {"DaemonSet"} and not options.force:
        if kinds:
            return "names a DaemonSet as its owner that does not exist or does not select it, so nothing makes it again (force)"
        return "has no owner that would make it again (force)"
    volumes = (pod.get("spec") or {}).get("volumes") or ()
    if any("emptyDir" in volume for volume in volumes) and not options.delete_emptydir_data:
        return "has local data in an emptyDir (delete_emptydir_data)"
    return None
