# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Offer GPUs with this collection's plugin, which leases quotas to pods.

The plugin runs on the host, and publishes the GPUs of entries with `leases: {by: kubernetes}` in ResourceSlices
(roles/gpu_kubernetes/files/openfleet_dra). Pods request memory and SM percent with claims. The role writes two
DeviceClasses.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from typing import Any, Iterator, Mapping, Sequence

from ....module_utils.sizes import format_size
from ..kubernetes.api_objects import OWNED, differs, is_owned, name_of, of_kind, reference, texts, title
from ..kubernetes.backend import WITHOUT_MIG_MANAGER, KubernetesBackend, differing
from ..kubernetes.leased import NODE_LABEL, is_leased, left_out, tenants_of
from ..model import Node, NodeGpu, Offer, Request, by_entry, online_notes
from ..protocol import Changes, Kind, Place, Removal, Seen

KEY = "openfleet_dra"
API = "resource.k8s.io/v1"
DRIVER = "gpu.openfleet.io"
#: Resource names in the offer, and DeviceClasses: of GPUs with leases, and of fixed tenants.
LEASES, TENANTS = "lease." + DRIVER, "tenant." + DRIVER
_TYPES = {LEASES: "gpu", TENANTS: "tenant"}
_NODE_LABEL = {NODE_LABEL: KEY}
_GATE = (
    "The cluster lacks the feature gate DRAConsumableCapacity, so pods get no leases. Enable it in kube-apiserver, "
    "kube-controller-manager and kube-scheduler."
)


class OpenfleetDra(KubernetesBackend):
    """The backend for this collection's plugin, which leases quotas to pods."""

    key = KEY
    applies = True
    component = "plugin for leases"
    defaults: Mapping[str, str] = {"namespace": "default", "config_map": "", "selector": "", "release": ""}
    fixed_labels: Mapping[str, str] = {**WITHOUT_MIG_MANAGER, **_NODE_LABEL}
    offered_in = Kind(API, "ResourceSlice", "spec.nodeName")
    reads = (Kind(API, "DeviceClass"),)
    leases = True

    def offer(self, node: Node) -> Offer:
        """Return the GPUs with leases by Kubernetes. Other GPUs are left out."""
        groups = by_entry(node.gpus)
        leased = [group for group in groups if is_leased(group[0])]
        tenants = [(group[0].where, tenant.name) for group in leased for tenant in tenants_of(group[0])]
        resources = {LEASES: sum(map(len, leased)), TENANTS: len(tenants)}
        requests = [Request(group[0].where, LEASES, claim=_lease_claim(group[0])) for group in leased]
        requests += [Request(where, TENANTS, claim=_tenant_claim(name)) for where, name in tenants]
        return Offer(
            KEY,
            {name: number for name, number in resources.items() if number},
            labels=dict(self.fixed_labels),
            requests=tuple(requests),
            left_out=left_out(groups),
            notes=tuple(_notes(leased)),
        )

    def changes(
        self, offer: Mapping[str, Any], node: Any, config_map: Any, place: Place, objects: Sequence[Any] = ()
    ) -> Changes:
        """Return the changes that make a node of the cluster match an offer.

        Besides labels, these are the two DeviceClasses.
        """
        changes = super().changes(offer, node, None, place, objects)
        if changes.problems:
            return changes
        current = {name_of(item): item for item in of_kind(objects, "DeviceClass")}
        desired = [device_class(name) for name in (LEASES, TENANTS)]
        foreign = [item for item in desired if name_of(item) in current and not is_owned(current[name_of(item)])]
        if foreign:
            problem = "node %s: the %s exists, and the role did not write it. Delete it. Nothing was changed."
            return Changes(problems=tuple(problem % (place.node, title(item)) for item in foreign))
        write = [item for item in desired if differs(item, current.get(name_of(item)))]
        published = Counter(_published(objects, place.node).values())
        lacks_gate = published and offer["resources"].get(LEASES) and not published[LEASES]
        return dataclasses.replace(
            changes,
            restart=False,
            write=tuple(write),
            warnings=("node %s: %s" % (place.node, _GATE),) if lacks_gate else (),
            lines=(*changes.lines, *("write %s" % title(item) for item in write)),
        )

    def seen(self, node: Any, objects: Sequence[Any], _names: re.Pattern[str]) -> Seen | None:
        """Return the devices that the plugin publishes for the node now, or None."""
        numbers = Counter(_published(objects, name_of(node)).values())
        uuids = frozenset(
            uuid
            for device in _devices(objects, name_of(node))
            for uuid in [_attribute(device, "uuid")]
            if isinstance(uuid, str)
        )
        cure = "Run with gpu_kubernetes_backend: %s and gpu_kubernetes_state: absent first." % KEY
        return Seen("the plugin for leases", numbers, cure, uuids) if numbers else None

    def removal(
        self,
        name: str,
        nodes: Sequence[Any],
        config_map: Any,
        objects: Sequence[Any] = (),
        removed: frozenset[str] = frozenset(),
    ) -> Removal:
        """Return the changes that undo earlier changes of the node `name`.

        The DeviceClasses are kept while a node that is not removed publishes devices.
        """
        removal = super().removal(name, nodes, None, objects, removed)
        others = {_mapping(item, "spec").get("nodeName") for item in _slices(objects)} - {name, *removed}
        if removal.problems or others:
            return removal
        classes = [item for item in of_kind(objects, "DeviceClass") if name_of(item) in _TYPES and is_owned(item)]
        return dataclasses.replace(removal, delete=tuple(map(reference, classes)))

    def pending_resources(
        self, offer: Mapping[str, Any], node: Any, objects: Sequence[Any]
    ) -> dict[str, tuple[int, int]]:
        """Return the devices whose published number differs from the plan.

        Without the feature gate, a cluster has no GPUs for leases. Fixed tenants can also fill a GPU.
        """
        published = Counter(_published(objects, name_of(node)).values())
        planned: dict[str, int] = dict(offer["resources"])
        any_slice = any(_mapping(item, "spec").get("nodeName") == name_of(node) for item in _slices(objects))
        if any_slice and published[LEASES] <= planned.get(LEASES, 0):
            planned.pop(LEASES, None)
            del published[LEASES]
        return differing(planned, published)

    def cause(self, pending: Mapping[str, Sequence[int]]) -> str:
        """Return where the plugin explains a difference."""
        return "see journalctl -u openfleet-gpu-dra on the host" if pending else ""


def device_class(name: str) -> dict[str, Any]:
    """Return the DeviceClass of GPUs with leases, or of fixed tenants."""
    selected = "device.driver == '%s' && device.attributes['%s'].type == '%s'" % (DRIVER, DRIVER, _TYPES[name])
    return {
        "apiVersion": API,
        "kind": "DeviceClass",
        "metadata": {"name": name, "labels": dict(OWNED)},
        "spec": {"selectors": [{"cel": {"expression": selected}}]},
    }


def _notes(groups: Sequence[Sequence[NodeGpu]]) -> list[str]:
    if not groups:
        return []
    notes = ["A container can have one lease. Limits for memory and SM percent: %s." % _limits(groups)]
    for group in groups:
        leases: Any = group[0].entry.leases if group[0].entry else None
        notes += ["%s: %s" % (group[0].where, note) for note in online_notes(leases, "pods with the priority class")]
    return notes


def _limits(groups: Sequence[Sequence[NodeGpu]]) -> str:
    texts_of = []
    for group in groups:
        leases: Any = group[0].entry.leases if group[0].entry else None
        memory = format_size(leases.memory_bytes) if leases.memory_bytes is not None else "the GPU"
        texts_of.append("%s: %s and %d %%" % (group[0].where, memory, leases.sm_percent or 100))
    return ", ".join(texts_of)


def _lease_claim(gpu: NodeGpu) -> dict[str, Any]:
    """Return the `spec` of an example claim."""
    leases: Any = gpu.entry.leases if gpu.entry else None
    memory_bytes = leases.memory_bytes or gpu.gpu.memory_total_bytes or 10 << 30
    capacity = {"memory": "%dMi" % max(1, memory_bytes // 10 >> 20), "smPercent": str(leases.sm_percent or 10)}
    exactly = {"deviceClassName": LEASES, "capacity": {"requests": capacity}}
    return {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}


def _tenant_claim(name: str) -> dict[str, Any]:
    selector = "device.attributes['%s'].tenant == '%s'" % (DRIVER, name)
    exactly = {"deviceClassName": TENANTS, "selectors": [{"cel": {"expression": selector}}]}
    return {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}


def _slices(objects: Sequence[Any]) -> list[Mapping[str, Any]]:
    return [item for item in of_kind(objects, "ResourceSlice") if texts(item, "spec").get("driver") == DRIVER]


def _devices(objects: Sequence[Any], node: str) -> Iterator[Mapping[str, Any]]:
    """Yield the devices in the newest generation of a node's slices."""
    specs = [_mapping(item, "spec") for item in _slices(objects)]
    specs = [spec for spec in specs if spec.get("nodeName") == node]
    newest = max((_generation(spec) for spec in specs), default=0)
    for spec in specs:
        if _generation(spec) == newest:
            devices = spec.get("devices")
            yield from (each for each in (devices if isinstance(devices, list) else []) if isinstance(each, Mapping))


def _published(objects: Sequence[Any], node: str) -> dict[str, str]:
    """Return the resource names of a node's devices, by device name."""
    names = {kind: name for name, kind in _TYPES.items()}
    found = ((device.get("name"), _attribute(device, "type")) for device in _devices(objects, node))
    return {name: names[kind] for name, kind in found if isinstance(name, str) and kind in names}


def _attribute(device: Mapping[str, Any], name: str) -> Any:
    return _mapping(_mapping(device, "attributes"), name).get("string")


def _generation(spec: Mapping[str, Any]) -> int:
    number = _mapping(spec, "pool").get("generation")
    return number if isinstance(number, int) else 0


def _mapping(parent: Any, key: str) -> Mapping[str, Any]:
    value = parent.get(key) if isinstance(parent, Mapping) else None
    return value if isinstance(value, Mapping) else {}
