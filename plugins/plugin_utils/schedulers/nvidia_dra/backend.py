# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Offer GPUs with NVIDIA's DRA driver for Kubernetes.

The driver publishes devices in ResourceSlices when it starts. Pods request devices with claims. The role writes a
DeviceClass for each MIG profile and ResourceClaimTemplates for each layout entry, and enables the driver's feature
gates.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from typing import Any, Iterable, Mapping, Sequence

from ...host_values import text
from ..kubernetes.api_objects import differs, is_owned, name_of, of_kind, reference, texts, title
from ..kubernetes.backend import WITHOUT_MIG_MANAGER, KubernetesBackend, differing
from ..model import Node, Offer
from ..nvidia_device_plugin.backend import RESOURCE as OF_DEVICE_PLUGIN
from ..protocol import Changes, Kind, Place, Removal, Seen
from . import objects as api
from .offer import KEY, NODE_LABEL, offer

_SLICES = Kind(api.API, "ResourceSlice", "spec.nodeName")


class Dra(KubernetesBackend):
    """The backend NVIDIA's DRA driver."""

    key = KEY
    applies = True
    component = "DRA driver"
    defaults: Mapping[str, str] = {
        "namespace": "dra-driver-nvidia-gpu",
        "config_map": "openfleet-gpu-dra-driver",
        "selector": "dra-driver-nvidia-gpu-component=kubelet-plugin",
        "release": "dra-driver-nvidia-gpu",
    }
    # The driver may start MPS daemons only if the chart enables the gate. The node selector keeps the driver off the
    # device plugin's nodes. Without gpuResourcesEnabledOverride, the chart refuses GPUs, in case both run on a node.
    chart_values: Mapping[str, Any] = {
        "gpuResourcesEnabledOverride": True,
        "resources": {"computeDomains": {"enabled": False}},
        "featureGates": {"DynamicMIG": False, "MPSSupport": True, "TimeSlicingSettings": True},
        # None removes the chart's affinity, which requires labels of node-feature-discovery that a cluster may not
        # have.
        "kubeletPlugin": {"nodeSelector": NODE_LABEL, "affinity": None},
    }
    refused = (
        r"""DynamicMIG["']?\s*[=:]\s*["']?(?i:true)""",
        "the feature gate DynamicMIG removes MIG instances that the DRA driver did not create. Remove the gate.",
    )
    fixed_labels: Mapping[str, str] = {**WITHOUT_MIG_MANAGER, **NODE_LABEL}
    offered_in = _SLICES
    reads = (
        Kind(api.API, "DeviceClass"),
        Kind(api.API, "ResourceClaimTemplate", node_label=api.OF_NODE),
        Kind("apps/v1", "DaemonSet", namespaced=True),
        Kind("v1", "Pod", "spec.nodeName"),
        Kind(api.API, "ResourceClaim", of_pods=True),
    )

    def offer(self, node: Node) -> Offer:
        """Return the driver's offer of the node's GPUs, or the refused entries."""
        return offer(node)

    def changes(
        self, offer: Mapping[str, Any], node: Any, config_map: Any, place: Place, objects: Sequence[Any] = ()
    ) -> Changes:
        """Return the changes that make a node of the cluster match an offer.

        Besides labels, these are DeviceClasses, ResourceClaimTemplates and feature gates of the driver's DaemonSet.
        """
        changes = super().changes(offer, node, config_map, place, objects)
        problems = [*changes.problems, *_gate_problems(offer, place, objects)]
        if problems:
            return dataclasses.replace(changes, problems=tuple(problems))
        desired = _desired(offer, place)
        current = {title(item): item for kind in _KINDS for item in of_kind(objects, kind)}
        foreign = [item for item in desired if title(item) in current and not is_owned(current[title(item)])]
        if foreign:
            return dataclasses.replace(changes, problems=tuple(_foreign(place.node, item) for item in foreign))
        names = {title(item) for item in desired}
        old = [item for name, item in current.items() if api.node_of(item) == place.node and name not in names]
        # Replace the template, because the API does not permit changes of its spec.
        changed = [item for item in desired if title(item) in current and differs(item, current[title(item)])]
        recreated = [item for item in changed if item["kind"] == _TEMPLATE]
        write = [item for item in desired if title(item) not in current or item in changed]
        gates = _gate_patch(offer, place, objects)
        lines = ["delete %s" % title(item) for item in old]
        lines += ["write %s" % title(item) for item in write]
        lines += ["%s: set FEATURE_GATES to %s" % (title(item), _gates_text(item)) for item in gates]
        return dataclasses.replace(
            changes,
            restart=changes.restart or bool(gates),
            delete=tuple(reference(item) for item in [*old, *recreated]),
            write=(*write, *gates),
            # A missing device proves nothing before the driver has published the layout's devices.
            lost=() if changes.pending else _names(api.lost_pods(objects, place.node)),
            replaced=_names(api.pods_with(objects, OF_DEVICE_PLUGIN)),
            lines=(*changes.lines, *lines),
        )

    def seen(self, node: Any, objects: Sequence[Any], _names: re.Pattern[str]) -> Seen | None:
        """Return the devices that the driver publishes for the node now, or None."""
        numbers = Counter(api.published(objects, name_of(node)).get(name_of(node), {}).values())
        cure = "Run with gpu_kubernetes_backend: nvidia_dra and gpu_kubernetes_state: absent first."
        return Seen("the DRA driver", numbers, cure, api.gpus(objects, name_of(node))) if numbers else None

    def removal(
        self,
        name: str,
        nodes: Sequence[Any],
        config_map: Any,
        objects: Sequence[Any] = (),
        removed: frozenset[str] = frozenset(),
    ) -> Removal:
        """Return the changes that undo earlier changes of the node `name`.

        A DeviceClass is kept while a node that is not removed publishes an instance of its profile. The removal ends the driver
        on the node, so it is refused while pods of the node have claims.
        """
        removal = super().removal(name, nodes, config_map, objects, removed)
        if removal.problems:
            return removal
        pods = [pod for _uid, pod in _names(api.claiming_pods(objects, name))]
        if pods:
            problem = (
                "node %s: these pods have claims of its GPUs: %s. Without the DRA driver, the kubelet could not end them. Wait "
                "for or delete these pods, and run again. Nothing was changed."
            )
            return Removal(problems=(problem % (name, ", ".join(sorted(pods))),))
        remaining = [devices for node, devices in api.published(objects).items() if node not in {name, *removed}]
        used = {resource for devices in remaining for resource in devices.values()}
        classes = {api.class_name(resource.partition("/")[2]) for resource in used if "/" in resource}
        delete = [item for item in of_kind(objects, _TEMPLATE) if api.node_of(item) == name]
        delete += [item for item in of_kind(objects, _CLASS) if is_owned(item) and name_of(item) not in classes]
        return dataclasses.replace(removal, delete=tuple(map(reference, delete)))

    def pending_resources(
        self, offer: Mapping[str, Any], node: Any, objects: Sequence[Any]
    ) -> dict[str, tuple[int, int]]:
        """Return the devices whose published number differs from the plan.

        If the host already has the layout's devices, a published device counts only if the host has its UUID. The
        driver publishes the devices that it found at its start, and a new instance can have a removed one's profile.
        """
        planned, current = offer["resources"], offer["devices"]
        offered = api.published(objects, name_of(node)).get(name_of(node), {})
        numbers = Counter(offered.values())
        if Counter(current.values()) == Counter(planned):
            matching = Counter(resource for uuid, resource in offered.items() if current.get(uuid) == resource)
            for resource in [name for name in numbers if matching[name] < planned.get(name, 0)]:
                numbers[resource] = matching[resource]
        return differing(planned, numbers)


_CLASS, _TEMPLATE = _KINDS = ("DeviceClass", "ResourceClaimTemplate")


def _desired(offer: Mapping[str, Any], place: Place) -> list[dict[str, Any]]:
    profiles = [name.partition("/")[2] for name in offer["resources"] if name.startswith(api.MIG_CLASS + "/")]
    templates = [
        api.template(request["template"], namespace, place.node, request["claim"])
        for namespace in place.claim_namespaces
        for request in offer["requests"]
        if request["template"]
    ]
    return [*map(api.device_class, profiles), *templates]


def _foreign(node: str, item: Mapping[str, Any]) -> str:
    return "node %s: the %s exists, and the role did not write it. Rename or delete it. Nothing was changed." % (
        node,
        title(item),
    )


def _names(pods: Iterable[Any]) -> tuple[tuple[str, str], ...]:
    """Return each pod's UID and namespace/name."""
    metadata = (texts(pod, "metadata") for pod in pods)
    names = (tuple(text(each.get(key, ""), 253) for key in ("uid", "namespace", "name")) for each in metadata)
    return tuple((uid, "%s/%s" % (namespace, name)) for uid, namespace, name in names)


def _gate_problems(offer: Mapping[str, Any], place: Place, objects: Sequence[Any]) -> list[str]:
    found = api.daemonset(objects, place.selector)
    has_mig = any(name.startswith(api.MIG_CLASS) for name in offer["resources"])
    if found is None or not has_mig or api.gates(found).get("DynamicMIG") != "true":
        return []
    return [
        "node %s: the %s has the feature gate DynamicMIG, and then the DRA driver removes MIG instances that it did not create. "
        "Remove the gate (featureGates of the chart, or FEATURE_GATES of the manifest). Nothing was changed."
        % (place.node, title(found))
    ]


def _gate_patch(offer: Mapping[str, Any], place: Place, objects: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the patch that enables missing feature gates.

    No gate is disabled, because other nodes may need it.
    """
    found = api.daemonset(objects, place.selector)
    needed = {name: True for name, value in offer["config"]["featureGates"].items() if value}
    if found is None or all(api.gates(found).get(name) == "true" for name in needed):
        return []
    return [api.with_gates(found, needed)]


def _gates_text(item: Mapping[str, Any]) -> str:
    value: str = item["spec"]["template"]["spec"]["containers"][0]["env"][0]["value"]
    return text(value, 500)
