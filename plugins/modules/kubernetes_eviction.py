#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: kubernetes_eviction
short_description: Evict pods of a Kubernetes node
version_added: "0.1.0"
description:
  - "Internal: only this collection uses this module."
  - Evicts the pods of a node with the given UIDs, or all except mirror pods.
  - A pod is a DaemonSet pod only if the API has a DaemonSet with the UID in the pod's owner reference and a selector that
    matches the pod. In contrast, M(kubernetes.core.k8s_drain) skips every pod with any DaemonSet in its owner references.
  - Respects disruption budgets. RV(refused) lists the protected pods. Retry their eviction.
  - Does not wait. Repeat the task with C(until) while RV(remaining) lists pods, as the role P(openfleet.gpu.gpu_drain#role)
    does.
  - Ignores UIDs of pods on other nodes, so that UIDs from a host cannot cause the eviction of other nodes' pods.
author:
  - openfleet.gpu contributors (!UNKNOWN)
requirements:
  - the Python package kubernetes
options:
  node:
    description: Name of the node.
    type: str
    required: true
  pods:
    description: UIDs of the pods. Without it, all pods of the node are evicted.
    type: list
    elements: str
  kubeconfig:
    description:
      - Path of a kubeconfig. Defaults to the environment variable E(K8S_AUTH_KUBECONFIG), or to kubectl's default.
    type: path
  context:
    description:
      - Context of the kubeconfig. Defaults to the environment variable E(K8S_AUTH_CONTEXT), or to the current context.
    type: str
  delete_options:
    description:
      - Which pods may be evicted, as in M(kubernetes.core.k8s_drain). If any other pod would have to be evicted, the module
        fails before any eviction.
    type: dict
    default: {}
    suboptions:
      force:
        description: Also evict pods that no owner would recreate.
        type: bool
        default: false
      ignore_daemonsets:
        description: Skip pods of DaemonSets instead of failing.
        type: bool
        default: false
      delete_emptydir_data:
        description: Also evict pods with data in an emptyDir.
        type: bool
        default: false
      disable_eviction:
        description: Delete the pods, which bypasses disruption budgets.
        type: bool
        default: false
      terminate_grace_period:
        description: Grace period in seconds. Defaults to the pod's own.
        type: int
extends_documentation_fragment:
  - openfleet.gpu.errors
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: full
    details: Reads pods and evicts none.
  diff_mode:
    support: none
  platform:
    platforms: posix
seealso:
  - module: kubernetes.core.k8s_drain
"""

EXAMPLES = r"""
- name: Evict two pods and wait until they are gone
  openfleet.gpu.kubernetes_eviction:
    node: h100-01
    pods: [3f0c8b9a-0b1d-4c58-9f0e-0d9f1c8a7b11, 5b6b0a51-2a34-4b6e-8c55-6a1d5a7c9e02]
    delete_options: {ignore_daemonsets: true}
  delegate_to: localhost
  register: result
  until: result is failed or result.remaining == []
  retries: 240
  delay: 15
"""

RETURN = r"""
evicted:
  description: The evicted pods, as C(namespace/name). In check mode, the pods that would be evicted.
  returned: success
  type: list
  elements: str
  sample: [team-a/train-7x2kd]
remaining:
  description: Evicted pods that have not ended yet, including pods evicted by earlier executions.
  returned: success
  type: list
  elements: str
  sample: [team-a/train-7x2kd]
daemonset_pods:
  description: Pods of the node that belong to an existing DaemonSet, as C(namespace/name).
  returned: success
  type: list
  elements: str
  sample: [gpu-operator/nvidia-dcgm-exporter-p5mzq]
refused:
  description: Messages of disruption budgets about pods that were not evicted.
  returned: success
  type: list
  elements: str
  sample: ["team-b/serve-0: Cannot evict pod as it would violate the pod's disruption budget."]
"""

from ansible.module_utils.basic import AnsibleModule, env_fallback, missing_required_lib

from ..module_utils.kubernetes.client import core_api, daemonsets_of, has_client, pods_of, reason
from ..module_utils.kubernetes.pod_eviction import EvictionError, Options, is_of_daemonset, pods_to_evict
from ..module_utils.runner import run

try:
    import kubernetes
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError
except ImportError:
    kubernetes = None

# HTTP status codes: a disruption budget protects the pod, the pod no longer exists, another pod has this name.
_PROTECTED = 429
_GONE = 404
_OTHER = 409


def argspec():
    return {
        "node": {"type": "str", "required": True},
        "pods": {"type": "list", "elements": "str"},
        "kubeconfig": {"type": "path", "fallback": (env_fallback, ["K8S_AUTH_KUBECONFIG"])},
        "context": {"type": "str", "fallback": (env_fallback, ["K8S_AUTH_CONTEXT"])},
        "delete_options": {
            "type": "dict",
            "default": {},
            "options": {
                "force": {"type": "bool", "default": False},
                "ignore_daemonsets": {"type": "bool", "default": False},
                "delete_emptydir_data": {"type": "bool", "default": False},
                "disable_eviction": {"type": "bool", "default": False},
                "terminate_grace_period": {"type": "int"},
            },
        },
    }


class Cluster:
    """The API of a cluster for evictions."""

    def __init__(self, kubeconfig, context):
        self._api = core_api(kubeconfig, context)

    def pods(self, node):
        """Return a node's pods as in the API. Raises ClusterError."""
        return pods_of(self._api, node)

    def daemonsets(self, pods):
        """Return existing DaemonSets that control the pods. Raises ClusterError."""
        return daemonsets_of(self._api, pods)

    def evict(self, pod, options):
        """Evict a pod. Raises EvictionError.

        Returns the disruption budget's message if it protects the pod, otherwise "".
        """
        # The UID prevents the eviction of a new pod with the same name.
        preconditions = kubernetes.client.V1Preconditions(uid=pod.uid)
        delete_options = kubernetes.client.V1DeleteOptions(
            preconditions=preconditions, grace_period_seconds=options.terminate_grace_period
        )
        try:
            if options.disable_eviction:
                self._api.delete_namespaced_pod(pod.name, pod.namespace, body=delete_options, _preload_content=False)
            else:
                metadata = kubernetes.client.V1ObjectMeta(name=pod.name, namespace=pod.namespace)
                body = kubernetes.client.V1Eviction(metadata=metadata, delete_options=delete_options)
                self._api.create_namespaced_pod_eviction(pod.name, pod.namespace, body, _preload_content=False)
        except ApiException as error:
            if error.status == _PROTECTED:
                return "%s: %s" % (pod, reason(error))
            if error.status not in (_GONE, _OTHER):
                raise EvictionError("pod %s" % pod, "it cannot be evicted: %s" % reason(error)) from None
        except HTTPError as error:
            raise EvictionError("pod %s" % pod, "it cannot be evicted: %s" % reason(error)) from None
        return ""


def evict(params, check_mode):
    """Evict the pods, and return the module's result."""
    given = params["delete_options"]
    options = Options(**{name: given[name] for name in Options.__dataclass_fields__ if given.get(name) is not None})
    cluster = Cluster(params["kubeconfig"], params["context"])
    node_pods = cluster.pods(params["node"])
    daemonsets = cluster.daemonsets(node_pods)
    pods = pods_to_evict(params["node"], node_pods, params["pods"], options, daemonsets)
    daemonset_pods = [
        "%(namespace)s/%(name)s" % pod["metadata"] for pod in node_pods if is_of_daemonset(pod, daemonsets)
    ]
    evicted, refused = [], []
    for pod in pods:
        if pod.is_going:
            continue
        problem = "" if check_mode else cluster.evict(pod, options)
        if problem:
            refused.append(problem)
        else:
            evicted.append(str(pod))
    remaining = [str(pod) for pod in pods]
    return {
        "changed": bool(evicted),
        "evicted": evicted,
        "remaining": remaining,
        "refused": refused,
        "daemonset_pods": sorted(daemonset_pods),
    }


def main():
    module = AnsibleModule(argument_spec=argspec(), supports_check_mode=True)
    if not has_client():
        module.fail_json(msg=missing_required_lib("kubernetes"))
    run(module, lambda: evict(module.params, module.check_mode))


if __name__ == "__main__":
    main()
