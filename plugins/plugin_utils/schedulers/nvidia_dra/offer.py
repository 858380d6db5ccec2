# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Offer the GPUs of a node with NVIDIA's DRA driver, version 0.4.

Sources: https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu, in site/content/docs: concepts/gpu-sharing.md,
reference/api.md, reference/feature-gates.md and reference/resourceslice-attributes.md.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Sequence

from ....module_utils.layout.profile_name import profile_order
from ...techniques.access import Access, Clients, Turns
from ..kubernetes.backend import WITHOUT_MIG_MANAGER
from ..model import Node, NodeGpu, NodeInstance, Offer, Refusal, Request, by_entry, gpus_text, refusal
from .objects import DRIVER, GPU_CLASS, MIG_CLASS, attribute

KEY = "nvidia_dra"
# Label of the nodes on which the driver's DaemonSet runs.
NODE_LABEL = {"openfleet.gpu/backend": KEY}

_API = "resource.nvidia.com/v1beta1"


def offer(node: Node) -> Offer:
    """Return the driver's offer of the node's GPUs, or the refused entries.

    Each GPU and each MIG instance is a device. Pods share a device by referencing the same claim, which defines how
    they share it (concepts/gpu-sharing.md, "User-mediated sharing").
    """
    gpus = node.gpus
    refusals = _refusals(gpus)
    if refusals:
        return Offer(KEY, refusals=tuple(refusals))
    requests = [request for group in by_entry(gpus) if group[0].entry for request in _requests(group, node.name)]
    return Offer(
        KEY,
        _devices(gpus),
        {"featureGates": _gates(gpus)},
        {**WITHOUT_MIG_MANAGER, **NODE_LABEL},
        tuple(requests),
        notes=tuple(_notes(gpus)),
        devices=_current(gpus),
    )


def _refusals(node: Sequence[NodeGpu]) -> list[Refusal]:
    found = []
    for group in by_entry(node):
        shared: tuple[NodeGpu | NodeInstance, ...] = (group[0], *(group[0].instances or ()))
        for each in shared:
            # A claim can configure time slicing or MPS, but has no quotas per pod (reference/api.md).
            if each.technique is not None and each.access is None:
                found.append(refusal(group, "the DRA driver does not support %s" % each.technique.title))
                break
        split = next((instance for instance in group[0].instances or () if instance.compute_slices), None)
        if split:
            # The driver has no profile for the parts of a split instance (cmd/gpu-kubelet-plugin/nvlib.go, getGpuInfo and
            # getMigDevices).
            found.append(
                refusal(
                    group,
                    "%s is split into compute instances, and then the DRA driver exits for all GPUs of the node"
                    % split.profile,
                    "Remove compute_instances.",
                )
            )
    return found


def _devices(node: Sequence[NodeGpu]) -> dict[str, int]:
    whole = sum(each.instances is None for each in node)
    profiles = Counter(instance.profile for each in node for instance in each.instances or ())
    found = {GPU_CLASS: whole} if whole else {}
    for profile in sorted(profiles, key=profile_order):
        found["%s/%s" % (MIG_CLASS, profile)] = profiles[profile]
    return found


def _current(node: Sequence[NodeGpu]) -> dict[str, str]:
    """Return each current device's class and profile, by UUID."""
    found = {}
    for each in node:
        if each.has_uuid and not each.gpu.mig.enabled:
            found[each.gpu.uuid] = GPU_CLASS
        for instance in each.gpu.mig.instances:
            found.update((uuid, "%s/%s" % (MIG_CLASS, instance.profile)) for uuid in instance.uuids if uuid)
    return found


def _gates(node: Sequence[NodeGpu]) -> dict[str, bool]:
    """Return the driver's feature gates that the layout needs.

    See reference/feature-gates.md. DynamicMIG is always off, because with it the driver removes instances that it did
    not create. It also cannot be combined with MPSSupport.
    """
    gates = {"DynamicMIG": False}
    every = [access for each in node for access in each.all_access]
    if any(isinstance(access, Clients) for access in every):
        gates["MPSSupport"] = True
    if any(isinstance(access, Turns) and access.interval for access in every):
        gates["TimeSlicingSettings"] = True
    return gates


def _requests(group: Sequence[NodeGpu], node: str) -> list[Request]:
    """Return the claims for an entry.

    An entry with instances has one claim for each kind of instance. Other entries have one claim for all their GPUs.
    """
    here = group[0]
    if here.instances is None:
        claim = _claim(GPU_CLASS, _cel("uuid", group), "GpuConfig", _sharing(here.access))
        return [Request(here.where, GPU_CLASS, claim=claim, template=_template(group, node))]
    kinds = sorted(
        {(part.profile, part.sharing, part.access) for part in here.instances},
        key=lambda kind: (profile_order(kind[0]), str(kind[1:])),
    )
    requests = []
    for profile, sharing, access in kinds:
        selector = " && ".join(
            part for part in ("%s == '%s'" % (attribute("profile"), profile), _cel("parentUUID", group)) if part
        )
        claim = _claim(MIG_CLASS, selector, "MigDeviceConfig", _sharing(access))
        name = _template(group, node, profile, sharing)
        requests.append(Request(here.where, "%s/%s" % (MIG_CLASS, profile), claim=claim, template=name))
    return requests


def _template(group: Sequence[NodeGpu], node: str, *parts: str | None) -> str:
    """Return the name of an entry's ResourceClaimTemplate.

    It consists of the node, the sharing, the GPUs and `parts`. Returns "" if the node has no name, or if the claim
    would not select the entry's GPUs.
    """
    if not node or not _cel("uuid", group):
        return ""
    words = [node, group[0].sharing, *(str(each.gpu.index) for each in group), *filter(None, parts)]
    return "-".join(words).replace("_", "-").replace("+", ".").lower()


def _claim(device_class: str, selector: str, kind: str, sharing: dict[str, Any] | None) -> dict[str, Any]:
    """Return the `spec` of a ResourceClaim that pods of a namespace can share."""
    exactly: dict[str, Any] = {"deviceClassName": device_class}
    if selector:
        exactly["selectors"] = [{"cel": {"expression": selector}}]
    devices: dict[str, Any] = {"requests": [{"name": "gpu", "exactly": exactly}]}
    if sharing is not None:
        parameters = {"apiVersion": _API, "kind": kind, "sharing": sharing}
        devices["config"] = [{"requests": ["gpu"], "opaque": {"driver": DRIVER, "parameters": parameters}}]
    return {"devices": devices}


def _sharing(access: Access | None) -> dict[str, Any] | None:
    """Return `sharing` of a claim, or None for the driver's defaults."""
    if isinstance(access, Clients):
        limits: dict[str, Any] = {"defaultActiveThreadPercentage": access.sm_percent}
        if access.memory_bytes is not None:
            limits["defaultPinnedDeviceMemoryLimit"] = "%dMi" % (access.memory_bytes >> 20)
        return {"strategy": "MPS", "mpsConfig": limits}
    if isinstance(access, Turns) and access.interval:
        return {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": access.interval.capitalize()}}
    return None


def _cel(name: str, group: Sequence[NodeGpu]) -> str:
    """Return the CEL expression that selects an entry's GPUs.

    Returns "" if a UUID is unknown.
    """
    if not all(each.has_uuid for each in group):
        return ""
    return "%s in [%s]" % (attribute(name), ", ".join("'%s'" % each.gpu.uuid for each in group))


def _notes(node: Sequence[NodeGpu]) -> list[str]:
    notes = []
    shared = [each for each in node if each.all_access]
    if shared:
        notes.append(
            "%s: pods that share a device use one ResourceClaim of their namespace, and their number is not enforced."
            % gpus_text([each.gpu.index for each in shared])
        )
    if any(isinstance(access, Clients) for each in node for access in each.all_access):
        notes.append(
            "The DRA driver starts an MPS daemon for each claim. Do not use the layout's daemon on the same GPU meanwhile."
        )
    if any(each.entry and not each.has_uuid for each in node):
        notes.append("The claims do not select GPUs, because their UUIDs are unknown until the driver responds.")
    unlisted = [each.gpu.index for each in node if each.entry is None]
    if unlisted:
        notes.append("No entry lists %s, so the DRA driver offers the current state." % gpus_text(unlisted))
    return notes
