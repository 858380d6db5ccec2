# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Create the objects of an offer, and read the objects of the DRA driver. Pure.

Sources: https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/ (resource.k8s.io/v1), and
of the driver: deployments/helm/dra-driver-nvidia-gpu and reference/resourceslice-attributes.md.

Objects of the cluster are untrusted. One without the API's format counts as absent.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Iterator, Mapping, Sequence

from ....module_utils.kubernetes.claims import claims_of
from ..kubernetes.api_objects import OWNED, annotations_of, is_owned, labels_of, name_of, of_kind, texts

API = "resource.k8s.io/v1"
DRIVER = "gpu.nvidia.com"
GPU_CLASS, MIG_CLASS = "gpu.nvidia.com", "mig.nvidia.com"
# Annotation and label of a node's templates. The label selects them in the API, and may have a shortened name.
OF_NODE = "openfleet.gpu/node"
_LABEL_LENGTH = 63
_GATES = "FEATURE_GATES"
# Name of the chart's container that publishes GPUs. The DaemonSet's other container is for ComputeDomains.
_CONTAINER = "gpus"
_SUFFIX = ".openfleet.gpu"


def class_name(profile: str) -> str:
    """Return the name of a MIG profile's DeviceClass. Plus signs become dots."""
    return "mig-%s%s" % (profile.replace("+", "."), _SUFFIX)


def device_class(profile: str) -> dict[str, Any]:
    """Return a MIG profile's DeviceClass, which selects the instances of all nodes."""
    selected = "device.driver == '%s' && %s == 'mig' && %s == '%s'" % (
        DRIVER,
        attribute("type"),
        attribute("profile"),
        profile,
    )
    return {
        "apiVersion": API,
        "kind": "DeviceClass",
        "metadata": {"name": class_name(profile), "labels": dict(OWNED)},
        "spec": {"selectors": [{"cel": {"expression": selected}}]},
    }


def template(name: str, namespace: str, node: str, claim: Mapping[str, Any]) -> dict[str, Any]:
    """Return a ResourceClaimTemplate. `claim` is the `spec` of its claims."""
    labels = {**OWNED, OF_NODE: node[:_LABEL_LENGTH].rstrip("-.")}
    metadata = {"name": name, "namespace": namespace, "labels": labels, "annotations": {OF_NODE: node}}
    return {"apiVersion": API, "kind": "ResourceClaimTemplate", "metadata": metadata, "spec": {"spec": dict(claim)}}


def attribute(name: str) -> str:
    """Return the CEL expression of a device's attribute."""
    return "device.attributes['%s'].%s" % (DRIVER, name)


def node_of(item: Any) -> str:
    """Return the node whose GPUs a template selects, or ""."""
    return annotations_of(item).get(OF_NODE, "") if is_owned(item) else ""


def published(objects: Sequence[Any], node: str = "") -> dict[str, dict[str, str]]:
    """Return the resource names of the driver's devices by node and UUID.

    An offer has the same names. Only includes `node`, if it is given. Only a pool's newest generation counts, as for
    the scheduler.
    """
    found: dict[str, dict[str, str]] = {}
    for spec in _newest(objects):
        name = spec.get("nodeName")
        if isinstance(name, str) and node in ("", name):
            found.setdefault(name, {}).update(_devices(spec))
    return found


def gpus(objects: Sequence[Any], node: str) -> frozenset[str]:
    """Return the UUIDs of a node's GPUs whose devices the driver publishes."""
    found = set()
    for spec in _newest(objects):
        for device in _mappings(spec.get("devices")) if spec.get("nodeName") == node else ():
            attributes = _mapping(device, "attributes")
            uuid = (_mapping(attributes, "parentUUID") or _mapping(attributes, "uuid")).get("string")
            found.update([uuid] if isinstance(uuid, str) else [])
    return frozenset(found)


def lost_pods(objects: Sequence[Any], node: str) -> list[Mapping[str, Any]]:
    """Return the pods with a claim of a device that the node no longer publishes.

    `objects` only has the node's pods. Such a pod does not start. Kubernetes does not end one that already runs.
    """
    names = {
        device.get("name")
        for spec in _newest(objects)
        if spec.get("nodeName") == node
        for device in _mappings(spec.get("devices"))
    }
    return _pods_with_claims(objects, node, lambda device: device not in names)


def claiming_pods(objects: Sequence[Any], node: str) -> list[Mapping[str, Any]]:
    """Return the active pods with a claim of one of the node's devices.

    `objects` only has the node's pods. The kubelet cannot end such a pod while the driver does not run on the node.
    """
    return _pods_with_claims(objects, node, lambda _device: True)


def _pods_with_claims(objects: Sequence[Any], node: str, selected: Callable[[Any], bool]) -> list[Mapping[str, Any]]:
    """Return the active pods with a claim of a selected device.

    `selected` gets the name of one of the node's devices.
    """
    claims = {
        _names(item)
        for item in of_kind(objects, "ResourceClaim")
        for result in _mappings(_mapping(_mapping(_mapping(item, "status"), "allocation"), "devices").get("results"))
        if (result.get("driver"), result.get("pool")) == (DRIVER, node) and selected(result.get("device"))
    }
    return [pod for pod in of_kind(objects, "Pod") if _is_active(pod) and claims & set(claims_of(pod))]


def daemonset(objects: Sequence[Any], selector: str) -> Mapping[str, Any] | None:
    """Return the driver's DaemonSet, or None.

    `selector` is its pods' label selector. Requirements other than equality are ignored.
    """
    wanted = dict(part.split("=", 1) for part in selector.replace("==", "=").replace(" ", "").split(",") if "=" in part)
    for item in of_kind(objects, "DaemonSet"):
        if wanted and wanted.items() <= labels_of(_mapping(_mapping(item, "spec"), "template")).items():
            return item
    return None


def gates(item: Mapping[str, Any]) -> dict[str, str]:
    """Return the feature gates of the driver's container, as texts."""
    for entry in _list(_container(item).get("env")):
        if isinstance(entry, Mapping) and entry.get("name") == _GATES and isinstance(entry.get("value"), str):
            parts = (part.split("=", 1) for part in entry["value"].split(",") if "=" in part)
            return {name.strip(): value.strip().lower() for name, value in parts}
    return {}


def with_gates(item: Mapping[str, Any], changed: Mapping[str, bool]) -> dict[str, Any]:
    """Return the patch that changes the feature gates of the driver's container.

    It is a strategic merge patch.
    """
    every = {**gates(item), **{name: str(value).lower() for name, value in changed.items()}}
    entry = {"name": _GATES, "value": ",".join("%s=%s" % gate for gate in sorted(every.items()))}
    container = {"name": _container(item).get("name", _CONTAINER), "env": [entry]}
    metadata = texts(item, "metadata")
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {key: metadata[key] for key in ("name", "namespace") if key in metadata},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }


def pods_with(objects: Sequence[Any], resource: re.Pattern[str]) -> list[Mapping[str, Any]]:
    """Return the active pods that request an extended resource matching the pattern."""
    return [pod for pod in of_kind(objects, "Pod") if any(map(resource.fullmatch, _requested(pod)))]


def _requested(pod: Mapping[str, Any]) -> Iterator[str]:
    if _is_active(pod):
        spec = _mapping(pod, "spec")
        for each in [*_list(spec.get("initContainers")), *_list(spec.get("containers"))]:
            yield from texts(_mapping(each, "resources"), "limits")


def _container(item: Mapping[str, Any]) -> Mapping[str, Any]:
    spec = _mapping(_mapping(_mapping(item, "spec"), "template"), "spec")
    containers = [each for each in _list(spec.get("containers")) if isinstance(each, Mapping)]
    named = [each for each in containers if each.get("name") == _CONTAINER]
    return (named or containers or [{}])[0]


def _is_active(pod: Any) -> bool:
    return _mapping(pod, "status").get("phase") not in ("Succeeded", "Failed")


def _names(item: Any) -> tuple[str, str]:
    return texts(item, "metadata").get("namespace", ""), name_of(item)


def _newest(objects: Sequence[Any]) -> list[Mapping[str, Any]]:
    """Return the `spec` of the driver's current ResourceSlices.

    These are the newest generation of each pool.
    """
    slices = [_mapping(item, "spec") for item in of_kind(objects, "ResourceSlice")]
    slices = [spec for spec in slices if spec.get("driver") == DRIVER]
    newest: dict[Any, int] = {}
    for spec in slices:
        newest[_pool(spec)] = max(newest.get(_pool(spec), 0), _generation(spec))
    return [spec for spec in slices if _generation(spec) == newest[_pool(spec)]]


def _pool(spec: Mapping[str, Any]) -> tuple[str, str]:
    return str(spec.get("nodeName")), str(_mapping(spec, "pool").get("name"))


def _generation(spec: Mapping[str, Any]) -> int:
    number = _mapping(spec, "pool").get("generation")
    return number if isinstance(number, int) else 0


def _devices(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for device in _mappings(spec.get("devices")):
        attributes = _mapping(device, "attributes")
        kind, uuid, profile = (_mapping(attributes, name).get("string") for name in ("type", "uuid", "profile"))
        if not isinstance(uuid, str):
            continue
        if kind == "mig" and isinstance(profile, str):
            yield uuid, "%s/%s" % (MIG_CLASS, profile)
        elif kind == "gpu":
            yield uuid, GPU_CLASS


def _mapping(parent: Any, key: str) -> Mapping[str, Any]:
    value = parent.get(key) if isinstance(parent, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [each for each in _list(value) if isinstance(each, Mapping)]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
