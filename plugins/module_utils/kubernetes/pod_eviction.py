# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Select a Kubernetes node's pods to evict, by UID and options. A pure function.

The rules are the same as in `kubectl drain` (k8s.io/kubectl/pkg/drain/filters.go). A pod cannot exempt itself:

- A pod belongs to a DaemonSet only if the API has a DaemonSet with this UID and its selector matches the pod's labels.
- The mirror annotation is trusted. The API server refuses to add it to an existing pod. If a pod has the annotation but
  no manifest on the node, the kubelet deletes the pod.
- The phase and the deletion time are trusted, because only the kubelet and the API server write them.
- Other owners only make `force` unnecessary. A forged owner does not prevent the eviction.
"""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from ..errors import FleetError
from ..foreign_text import text
from ..frozen import frozen
from .client import MIRROR, controller_of

# Maximum length of an object's name (https://kubernetes.io/docs/concepts/overview/working-with-objects/names/).
_MOST_NAME = 253
# Maximum number of pods in a message.
_MOST_PROBLEMS = 20
_ENDED = ("Succeeded", "Failed")


class EvictionError(FleetError):
    """Pods cannot be evicted, or the cluster does not respond."""


@frozen
class Pod:
    """A pod to evict.

    `is_going` is true if the pod was already evicted or deleted but has not ended yet.
    """

    namespace: str
    name: str
    uid: str
    is_going: bool = False

    def __str__(self) -> str:
        return "%s/%s" % (self.namespace, self.name)


@frozen
class Options:
    """Options of kubernetes.core.k8s_drain: which pods may be evicted, and how."""

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
    """Return the pods to evict, sorted by name.

    `uids` selects pods, or all pods except mirror pods if it is None. `pods` are the node's pods, as in the API.
    `daemonsets` are their existing controllers (`client.daemonsets_of`). Raises EvictionError with all selected pods
    whose eviction the options forbid.
    """
    candidates = [pod for pod in pods if uids is None or pod["metadata"].get("uid") in set(uids)]
    chosen, problems = [], []
    for pod in candidates:
        if (pod.get("status") or {}).get("phase") in _ENDED:
            continue
        metadata = pod["metadata"]
        if uids is None and MIRROR in (metadata.get("annotations") or {}):
            # A static pod ends only when its file on the host is removed.
            continue
        is_daemonsets = is_of_daemonset(pod, daemonsets)
        if is_daemonsets and options.ignore_daemonsets:
            # The DaemonSet would recreate the pod at once.
            continue
        names = (text(metadata[key], _MOST_NAME) for key in ("namespace", "name", "uid"))
        target = Pod(*names, bool(metadata.get("deletionTimestamp")))
        problem = None if target.is_going else _problem(pod, is_daemonsets, options)
        if problem:
            problems.append("%s %s" % (target, problem))
        chosen.append(target)
    if problems:
        cure = "Delete the pods yourself, or permit it in gpu_drain_kubernetes_delete_options. No pod was evicted."
        raise EvictionError("Kubernetes node %s" % node, _joined(problems), cure)
    return sorted(chosen, key=str)


def _joined(problems: Sequence[str]) -> str:
    more = ["and %d more pods" % (len(problems) - _MOST_PROBLEMS)] if len(problems) > _MOST_PROBLEMS else []
    return "; ".join([*problems[:_MOST_PROBLEMS], *more])


def is_of_daemonset(pod: Mapping[str, Any], daemonsets: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether one of the existing DaemonSets controls the pod."""
    metadata = pod["metadata"]
    owner = controller_of(metadata)
    reference = (metadata["namespace"], owner.get("name"), owner.get("uid"))
    return owner.get("kind") == "DaemonSet" and any(
        reference == (each["namespace"], each["name"], each["uid"])
        and _selects(each["selector"], metadata.get("labels") or {})
        for each in daemonsets
    )


def _selects(selector: Any, labels: Mapping[str, Any]) -> bool:
    """Return whether a selector matches the labels (apimachinery, LabelSelector).

    Here, an empty selector matches nothing.
    """
    if not isinstance(selector, Mapping):
        return False
    required, rules = selector.get("matchLabels") or {}, selector.get("matchExpressions") or []
    if not isinstance(required, Mapping) or not isinstance(rules, list) or not (required or rules):
        return False
    return all(labels.get(key) == value for key, value in required.items()) and all(
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
    """Return why the options forbid the pod's eviction, or None."""
    metadata = pod["metadata"]
    if MIRROR in (metadata.get("annotations") or {}):
        return "cannot be evicted: a static pod ends only when its file on the host is removed"
    if is_daemonsets:
        return "belongs to a DaemonSet that would recreate it (ignore_daemonsets)"
    kinds = {owner.get("kind") for owner in metadata.get("ownerReferences") or ()}
    if not kinds - {"DaemonSet"} and not options.force:
        if kinds:
            return "names a DaemonSet as its owner that does not exist or does not select it, so nothing recreates it (force)"
        return "has no owner that would recreate it (force)"
    volumes = (pod.get("spec") or {}).get("volumes") or ()
    if any("emptyDir" in volume for volume in volumes) and not options.delete_emptydir_data:
        return "has local data in an emptyDir (delete_emptydir_data)"
    return None
