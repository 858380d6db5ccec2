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
  - Evicts the pods of a node that have the given UIDs, or all of them but mirror pods.
  - Pods of a DaemonSet are those whose controller is a DaemonSet that the API has, with the same UID and a selector that matches
    the pod. M(kubernetes.core.k8s_drain) leaves every pod that names any DaemonSet.
  - Disruption budgets are respected. A pod that one protects is named in RV(refused), to be tried again.
  - It does not wait. Run it again, with C(until), while RV(remaining) names pods, as the role P(openfleet.gpu.gpu_drain#role)
    does.
  - A UID that no pod of the node has is ignored, so that a host can name no pods but its own.
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
    description: UIDs of the pods. Without it, all pods of the node go.
    type: list
    elements: str
  kubeconfig:
    description:
      - Path of a kubeconfig. Without it the environment variable E(K8S_AUTH_KUBECONFIG) is used, or what kubectl would take.
    type: path
  context:
    description:
      - Context of the kubeconfig. Without it the environment variable E(K8S_AUTH_CONTEXT) is used, or the current one.
    type: str
  delete_options:
    description:
      - Which pods may go, as M(kubernetes.core.k8s_drain) has it. A pod that may not fails the module before any is evicted.
    type: dict
    default: {}
    suboptions:
      force:
        description: Also pods that no owner would make again.
        type: bool
        default: false
      ignore_daemonsets:
        description: Leave pods of DaemonSets, in place of failing.
        type: bool
        default: false
      delete_emptydir_data:
        description: Also pods with data in an emptyDir.
        type: bool
        default: false
      disable_eviction:
        description: Delete the pods, past disruption budgets.
        type: bool
        default: false
      terminate_grace_period:
        description: Seconds that a pod gets to end. Without it, the pod's own.
        type: int
extends_documentation_fragment:
  - openfleet.gpu.errors
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: full
    details: Pods are looked at, and none is evicted.
  diff_mode:
    support: none
  platform:
    platforms: posix
seealso:
  - module: kubernetes.core.k8s_drain
"""

EXAMPLES = r"""
- name: Evict two pods, and wait until they are gone
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
  description: The pods that were evicted, as C(namespace/name); in check mode those that would be.
  returned: success
  type: list
  elements: str
remaining:
  description: The pods that have not ended yet, also those of an earlier execution.
  returned: success
  type: list
  elements: str
daemonset_pods:
  description: The pods of the node whose DaemonSets exist, as C(namespace/name).
  returned: success
  type: list
  elements: str
refused:
  description: What disruption budgets say of pods that were not evicted.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule, env_fallback, missing_required_lib

from ..module_utils.kubernetes_client import core_api, daemonsets_of, has_client, pods_of, reason
from ..module_utils.pod_eviction import EvictionError, Options, is_of_daemonset, pods_to_evict
from ..module_utils.runner import run

try:
    import kubernetes
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError
except ImportError:
    kubernetes = None

#: Statuses of HTTP: a disruption budget refuses for now; the pod is gone; the name is another pod's by now.
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
    """The API of a cluster, as far as evictions go."""

    def __init__(self, kubeconfig, context):
        self._api = core_api(kubeconfig, context)

    def pods(self, node):
        """Return the pods of a node as the API has them. Raises ClusterError."""
        return pods_of(self._api, node)

    def daemonsets(self, pods):
        """Return the DaemonSets that exist, of those that pods name as their controllers. Raises ClusterError."""
        return daemonsets_of(self._api, pods)

    def evict(self, pod, options):
        """Evict the pod; return what a disruption budget says against it, empty where it goes. Raises EvictionError."""
        # With the UID: a pod of the same name that was made since is left.
        preconditions = kubernetes.client.V1Preconditions(uid=pod.uid)
        how = kubernetes.client.V1DeleteOptions(
            preconditions=preconditions, grace_period_seconds=options.terminate_grace_period
        )
        try:
            if options.disable_eviction:
                self._api.delete_namespaced_pod(pod.name, pod.namespace, body=how, _preload_content=False)
            else:
                metadata = kubernetes.client.V1ObjectMeta(name=pod.name, namespace=pod.namespace)
                body = kubernetes.client.V1Eviction(metadata=metadata, delete_options=how)
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
    """The module's return values."""
    given = params["delete_options"]
    options = Options(**{name: given[name] for name in Options.__dataclass_fields__ if given.get(name) is not None})
    cluster = Cluster(params["kubeconfig"], params["context"])
    there = cluster.pods(params["node"])
    daemonsets = cluster.daemonsets(there)
    pods = pods_to_evict(params["node"], there, params["pods"], options, daemonsets)
    kept = ["%(namespace)s/%(name)s" % pod["metadata"] for pod in there if is_of_daemonset(pod, daemonsets)]
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
        "daemonset_pods": sorted(kept),
    }


def main():
    module = AnsibleModule(argument_spec=argspec(), supports_check_mode=True)
    if not has_client():
        module.fail_json(msg=missing_required_lib("kubernetes"))
    run(module, lambda: evict(module.params, module.check_mode))


if __name__ == "__main__":
    main()
