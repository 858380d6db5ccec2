# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide which pods of a Kubernetes node to evict: those with given UIDs, where the options allow it. Pure.

The rules are those of `kubectl drain` and kubernetes.core.k8s_drain.
"""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from .errors import FleetError
from .frozen import frozen

#: Of a static pod, which the kubelet runs from a file: https://kubernetes.io/docs/reference/labels-annotations-taints/
_MIRROR = "kubernetes.io/config.mirror"
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


def pods_to_evict(node: str, pods: Sequence[Mapping[str, Any]], uids: Sequence[str], options: Options) -> list[Pod]:
    """Return the pods with these UIDs that have to go, in the order of their names.

    `pods` are all of the node, as the API has them.
    Raises EvictionError, before any goes, with all pods that may not.
    """
    wanted = [pod for pod in pods if pod["metadata"].get("uid") in set(uids)]
    chosen, problems = [], []
    for pod in wanted:
        if (pod.get("status") or {}).get("phase") in _ENDED:
            continue
        metadata = pod["metadata"]
        found = Pod(metadata["namespace"], metadata["name"], metadata["uid"], bool(metadata.get("deletionTimestamp")))
        owners = {owner.get("kind") for owner in metadata.get("ownerReferences") or ()}
        if "DaemonSet" in owners and options.ignore_daemonsets:
            # It would be made again at once.
            continue
        problem = None if found.is_going else _problem(pod, owners, options)
        if problem:
            problems.append("%s %s" % (found, problem))
        chosen.append(found)
    if problems:
        cure = "Delete the pods yourself, or allow it in gpu_drain_kubernetes_delete_options. No pod was evicted."
        raise EvictionError("Kubernetes node %s" % node, "; ".join(problems), cure)
    return sorted(chosen, key=str)


def _problem(pod: Mapping[str, Any], owners: set[Any], options: Options) -> str | None:
    """Return why a pod may not be evicted."""
    if _MIRROR in (pod["metadata"].get("annotations") or {}):
        return "is a static pod, which only its file on the host ends"
    if "DaemonSet" in owners:
        return "is a DaemonSet's, which would make it again (ignore_daemonsets)"
    if not owners and not options.force:
        return "has no owner that would make it again (force)"
    volumes = (pod.get("spec") or {}).get("volumes") or ()
    if any("emptyDir" in volume for volume in volumes) and not options.delete_emptydir_data:
        return "has local data in an emptyDir (delete_emptydir_data)"
    return None
