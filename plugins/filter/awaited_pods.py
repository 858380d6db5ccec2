# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""List the pods of a Kubernetes node that a drain has to wait for."""

from __future__ import annotations

DOCUMENTATION = r"""
name: awaited_pods
short_description: List the pods of a Kubernetes node that a drain has to wait for
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Returns the pods of a node that must end before the node is drained. Pods of DaemonSets are omitted, because they would be
    recreated. Mirror pods are omitted, because only the kubelet manages them. Pods that have ended are omitted too.
  - If the node selector of a pod no longer matches O(labels), the pod is included, because its DaemonSet removes it.
options:
  _input:
    description: Pods, as M(kubernetes.core.k8s_info) returns them.
    type: list
    elements: dict
    required: true
  labels:
    description: Labels of the node with their values during the drain.
    type: dict
    default: {}
  evicted:
    description: Whether pods without a DaemonSet are evicted. Otherwise only pods of DaemonSets are returned.
    type: bool
    default: true
  daemonset_pods:
    description:
      - Pods with an existing DaemonSet, as in RV(openfleet.gpu.kubernetes_eviction#module:daemonset_pods). If the owner of
        another pod is a DaemonSet, that pod is omitted.
      - Without this option, every pod whose owner is a DaemonSet counts as a pod of that DaemonSet.
    type: list
    elements: str
"""

EXAMPLES = r"""
- name: Show the remaining pods
  ansible.builtin.debug:
    msg: "{{ pods.resources | openfleet.gpu.awaited_pods }}"
"""

RETURN = r"""
_value:
  description: The pods as C(namespace/name).
  type: list
  elements: str
  sample: [team-a/train-7x2kd]
"""

#: https://kubernetes.io/docs/reference/labels-annotations-taints/#kubernetes-io-config-mirror
MIRROR = "kubernetes.io/config.mirror"


def awaited_pods(pods, *, labels=None, evicted=True, daemonset_pods=None):
    """See DOCUMENTATION."""
    from ..plugin_utils.host_values import text

    awaited = (pod for pod in pods if _is_awaited(pod, labels or {}, evicted, daemonset_pods))
    return [text("%(namespace)s/%(name)s" % pod["metadata"]) for pod in awaited]


def _is_awaited(pod, labels, evicted, daemonset_pods):
    metadata = pod["metadata"]
    if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return False
    if "DaemonSet" in {owner.get("kind") for owner in metadata.get("ownerReferences") or ()}:
        if daemonset_pods is not None and "%(namespace)s/%(name)s" % metadata not in daemonset_pods:
            return False
        selector = (pod.get("spec") or {}).get("nodeSelector") or {}
        return any(selector.get(name, value) != value for name, value in labels.items())
    return evicted and MIRROR not in (metadata.get("annotations") or {})


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        return {"awaited_pods": awaited_pods}
