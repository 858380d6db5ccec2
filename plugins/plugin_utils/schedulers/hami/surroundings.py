# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check HAMi's scheduler and webhook, and other plugins on a node. Pure.

Names: charts/hami of HAMi 2.10. Objects of the cluster are untrusted. One without the API's format counts as absent.
"""

from __future__ import annotations

from typing import Any, Iterator, Mapping, Sequence

from ...host_values import text
from ..kubernetes.api_objects import annotations_of, labels_of, name_of, texts
from ..kubernetes.hami_core import HAMI_ALLOCATED, HAMI_WEBHOOK
from ..protocol import Place

_COMPONENT = "app.kubernetes.io/component"
_SCHEDULER, _PLUGIN = "hami-scheduler", "hami-device-plugin"
# Labels of other plugins' pods that offer the same GPUs: NVIDIA's chart, and the GPU operator.
_OTHERS = {"app.kubernetes.io/name": "nvidia-device-plugin", "app": "nvidia-device-plugin-daemonset"}
_BACKEND = "openfleet.gpu/backend"
# Annotation of a pod that is being placed (pkg/util/types.go).
_PHASE, _ALLOCATING = "hami.io/bind-phase", "allocating"
# Policies of HAMi's scheduler (pkg/util/types.go). HAMi silently replaces other words with its default.
NODE_POLICIES = ("binpack", "spread")
GPU_POLICIES = ("binpack", "spread", "topology-aware", "mutex", "numa")
_POLICY_FLAGS = {"--node-scheduler-policy": NODE_POLICIES, "--gpu-scheduler-policy": GPU_POLICIES}


def problems(node: Any, labels: Mapping[str, str], place: Place, objects: Sequence[Any]) -> list[str]:
    """Return problems for which HAMi must not offer the node's GPUs.

    `labels` has the labels that the node will get.
    """
    name = place.node
    return [
        *_other_plugins(node, name, objects),
        *_other_config_map(name, place.config_map, objects),
        *_other_nodes({**labels_of(node), **labels}, name, objects),
        *_no_scheduler(name, objects),
        *_unknown_policies(name, objects),
    ]


def warnings(name: str, objects: Sequence[Any]) -> list[str]:
    """Return warnings about the webhook that sends pods to HAMi's scheduler."""
    if daemonset(objects) is None:
        return []
    webhooks = [
        (name_of(item), hook)
        for item in _of_kind(objects, "MutatingWebhookConfiguration")
        for hook in _mappings(item.get("webhooks"))
        if hook.get("name") == HAMI_WEBHOOK
    ]
    if not webhooks:
        missing = (
            "node %s: the cluster has no webhook %s, so pods use HAMi only if they set schedulerName: hami-scheduler. Other pods "
            "with nvidia.com/gpu fail on the node, or get the GPU of another pod."
        )
        return [missing % (name, HAMI_WEBHOOK)]
    ignoring = (
        "node %s: DANGER: the webhook %s of %s has failurePolicy Ignore. While HAMi's scheduler does not respond, new pods "
        "bypass HAMi: pods with nvidia.com/gpu fail on the node, or get the GPU of another pod. Set "
        "scheduler.admissionWebhook.failurePolicy: Fail in the values of HAMi's chart."
    )
    return [
        ignoring % (name, HAMI_WEBHOOK, text(config, 253))
        for config, hook in webhooks
        if hook.get("failurePolicy") == "Ignore"
    ]


def assigned(objects: Sequence[Any], node: str, uuids: Sequence[str]) -> list[str]:
    """Return the pods that are starting on these GPUs, as namespace/name."""
    starting = []
    for pod in _of_kind(objects, "Pod"):
        annotations = annotations_of(pod)
        devices = ",".join(annotations.get(key, "") for key in HAMI_ALLOCATED)
        if annotations.get(_PHASE) == _ALLOCATING and _node_of(pod) == node and any(uuid in devices for uuid in uuids):
            starting.append(_title(pod))
    return sorted(set(starting))


def daemonset(objects: Sequence[Any]) -> Mapping[str, Any] | None:
    """Return the DaemonSet of HAMi's device plugin, or None."""
    return next((item for item in _of_kind(objects, "DaemonSet") if labels_of(item).get(_COMPONENT) == _PLUGIN), None)


def _other_plugins(node: Any, name: str, objects: Sequence[Any]) -> list[str]:
    backend = labels_of(node).get(_BACKEND)
    found = []
    if backend:
        cure = (
            "Set gpu_kubernetes_state: absent with the earlier backend first, or remove the label. Nothing was changed."
        )
        found.append(
            "node %s: the label %s: %s belongs to another backend. %s" % (name, _BACKEND, text(backend, 63), cure)
        )
    pods = [
        _title(pod)
        for pod in _of_kind(objects, "Pod")
        if _node_of(pod) == name and any(labels_of(pod).get(key) == value for key, value in _OTHERS.items())
    ]
    if pods:
        problem = (
            "node %s: the pod %s of NVIDIA's device plugin offers nvidia.com/gpu, and HAMi would offer the same GPUs again. Keep "
            "that plugin off the node (GPU operator: label nvidia.com/gpu.deploy.device-plugin=false). Nothing was changed."
        )
        found.append(problem % (name, sorted(pods)[0]))
    return found


def _other_config_map(name: str, config_map: str, objects: Sequence[Any]) -> list[str]:
    plugin = daemonset(objects)
    if plugin is None or not config_map:
        return []
    volumes = _mappings(_at(plugin, "spec", "template", "spec").get("volumes"))
    read = [texts(volume, "configMap").get("name", "") for volume in volumes if volume.get("name") == "deviceconfig"]
    if not read or config_map in read:
        return []
    problem = (
        "node %s: HAMi's device plugin reads the ConfigMap %s. Set gpu_kubernetes_config_map: %s, or "
        "devicePlugin.nodeConfiguration.externalConfigName: %s in the values of HAMi's chart. Nothing was changed."
    )
    return [problem % (name, text(read[0], 253), text(read[0], 253), config_map)]


def _other_nodes(labels: Mapping[str, str], name: str, objects: Sequence[Any]) -> list[str]:
    """Return a problem if HAMi's DaemonSet does not select the node."""
    selector = texts(_at(daemonset(objects), "spec", "template", "spec"), "nodeSelector")
    missing = [
        "%s=%s" % (text(key, 63), text(value, 63)) for key, value in selector.items() if labels.get(key) != value
    ]
    if not missing or labels.get("gpu") != "on":
        return []
    problem = (
        "node %s: HAMi's device plugin runs only on nodes with the label %s. Add it to the node. Nothing was changed."
    )
    return [problem % (name, ", ".join(missing))]


def _no_scheduler(name: str, objects: Sequence[Any]) -> list[str]:
    ready = [_at(item, "status").get("readyReplicas") for item in _schedulers(objects)]
    if daemonset(objects) is None or any(isinstance(number, int) and number > 0 for number in ready):
        return []
    problem = (
        "node %s: HAMi is installed, and no pod of its scheduler is ready (label %s=%s), so no pod can get a GPU. Check these "
        "pods (kubectl get pods -A -l %s=%s). Nothing was changed."
    )
    return [problem % (name, _COMPONENT, _SCHEDULER, _COMPONENT, _SCHEDULER)]


def _unknown_policies(name: str, objects: Sequence[Any]) -> list[str]:
    found = []
    for item in _schedulers(objects):
        for word in _arguments(item):
            flag, _unused, value = word.partition("=")
            policies = _POLICY_FLAGS.get(flag, ())
            unknown = [part for part in value.split(",") if policies and part.strip() not in policies]
            if unknown:
                problem = (
                    "node %s: HAMi's scheduler runs with %s, and HAMi has no policy %s. Use %s. Nothing was changed."
                )
                found.append(problem % (name, text(word, 120), text(unknown[0], 60), " or ".join(policies)))
    return found


def _schedulers(objects: Sequence[Any]) -> list[Mapping[str, Any]]:
    return [item for item in _of_kind(objects, "Deployment") if labels_of(item).get(_COMPONENT) == _SCHEDULER]


def _arguments(item: Mapping[str, Any]) -> Iterator[str]:
    for container in _mappings(_at(item, "spec", "template", "spec").get("containers")):
        for key in ("command", "args"):
            words = container.get(key)
            yield from (word for word in (words if isinstance(words, list) else ()) if isinstance(word, str))


def _node_of(pod: Mapping[str, Any]) -> str:
    return texts(pod, "spec").get("nodeName", "")


def _title(item: Mapping[str, Any]) -> str:
    return "%s/%s" % (text(texts(item, "metadata").get("namespace", ""), 253), text(name_of(item), 253))


def _of_kind(objects: Sequence[Any], kind: str) -> list[Mapping[str, Any]]:
    return [item for item in objects if isinstance(item, Mapping) and item.get("kind") == kind and name_of(item)]


def _at(parent: Any, *keys: str) -> Mapping[str, Any]:
    for key in keys:
        parent = parent.get(key) if isinstance(parent, Mapping) else None
    return parent if isinstance(parent, Mapping) else {}


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []
