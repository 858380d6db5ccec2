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

from ....module_utils.techniques.mps import model as mps
from ....module_utils.techniques.time_slicing import model as time_slicing
from ..kubernetes.backend import WITHOUT_MIG_MANAGER
from ..model import Node, NodeGpu, Offer, Refusal, Request, by_entry, gpus_text, profile_order, refusal

KEY = "nvidia_dra"

GPU_CLASS, MIG_CLASS, _DRIVER = "gpu.nvidia.com", "mig.nvidia.com", "gpu.nvidia.com"
_API = "resource.nvidia.com/v1beta1"


def offer(node: Node) -> Offer:
    """Return the driver's offer of the node's GPUs, or the refused entries.

    Each GPU and each MIG instance is a device. Pods share a device by referencing the same claim. The claim defines how they
    share it (concepts/gpu-sharing.md, "User-mediated sharing").
    """
    gpus = node.gpus
    refusals = _refusals(gpus)
    if refusals:
        return Offer(KEY, refusals=tuple(refusals))
    requests = [request for group in by_entry(gpus) if group[0].entry for request in _requests(group)]
    return Offer(
        KEY,
        _devices(gpus),
        {"featureGates": _gates(gpus)},
        WITHOUT_MIG_MANAGER,
        tuple(requests),
        notes=tuple(_notes(gpus)),
    )


def _refusals(node: Sequence[NodeGpu]) -> list[Refusal]:
    found = []
    for group in by_entry(node):
        if group[0].sharing == "vgpu":
            # A claim can configure time slicing or MPS, but no quotas per pod (reference/api.md).
            found.append(refusal(group, "the DRA driver does not support tenants with quotas"))
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


def _gates(node: Sequence[NodeGpu]) -> dict[str, bool]:
    """Return the feature gates of the driver that the layout needs.

    See reference/feature-gates.md. DynamicMIG is always off, because with it the driver removes instances that it did not
    create. In addition, DynamicMIG cannot be combined with MPSSupport.
    """
    gates = {"DynamicMIG": False}
    if any(each.sharing == mps.KEY or any(part.mps for part in each.instances or ()) for each in node):
        gates["MPSSupport"] = True
    if any(_slice(each) != time_slicing.DEFAULT for each in node):
        gates["TimeSlicingSettings"] = True
    return gates


def _slice(each: NodeGpu) -> str:
    entry = each.entry
    return entry.part.slice if entry is not None and entry.sharing == time_slicing.KEY else time_slicing.DEFAULT


def _requests(group: Sequence[NodeGpu]) -> list[Request]:
    """Return the claims for an entry.

    An entry with instances has one claim for each kind of instance. Other entries have a single claim for their GPUs.
    """
    here = group[0]
    entry = here.entry
    assert entry is not None
    if here.instances is None:
        sharing = None
        if entry.sharing == mps.KEY:
            sharing = _mps(entry.part)
        elif _slice(here) != time_slicing.DEFAULT:
            sharing = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": _slice(here).capitalize()}}
        return [Request(here.where, GPU_CLASS, claim=_claim(GPU_CLASS, _cel("uuid", group), "GpuConfig", sharing))]
    kinds = sorted(
        {(part.profile, part.mps) for part in here.instances}, key=lambda kind: (profile_order(kind[0]), str(kind[1]))
    )
    requests = []
    for profile, served in kinds:
        selector = " && ".join(
            part for part in ("%s == '%s'" % (_attribute("profile"), profile), _cel("parentUUID", group)) if part
        )
        claim = _claim(MIG_CLASS, selector, "MigDeviceConfig", _mps(served) if served else None)
        requests.append(Request(here.where, "%s/%s" % (MIG_CLASS, profile), claim=claim))
    return requests


def _claim(device_class: str, selector: str, kind: str, sharing: dict[str, Any] | None) -> dict[str, Any]:
    """Return the `spec` of a ResourceClaim that pods of a namespace can share."""
    exactly: dict[str, Any] = {"deviceClassName": device_class}
    if selector:
        exactly["selectors"] = [{"cel": {"expression": selector}}]
    devices: dict[str, Any] = {"requests": [{"name": "gpu", "exactly": exactly}]}
    if sharing is not None:
        parameters = {"apiVersion": _API, "kind": kind, "sharing": sharing}
        devices["config"] = [{"requests": ["gpu"], "opaque": {"driver": _DRIVER, "parameters": parameters}}]
    return {"devices": devices}


def _mps(part: mps.Mps) -> dict[str, Any]:
    limits: dict[str, Any] = {"defaultActiveThreadPercentage": part.active_thread_percentage}
    if part.pinned_memory_limit_bytes is not None:
        limits["defaultPinnedDeviceMemoryLimit"] = "%dMi" % (part.pinned_memory_limit_bytes >> 20)
    return {"strategy": "MPS", "mpsConfig": limits}


def _attribute(name: str) -> str:
    return "device.attributes['%s'].%s" % (_DRIVER, name)


def _cel(attribute: str, group: Sequence[NodeGpu]) -> str:
    """Return the CEL expression that selects the GPUs of an entry.

    Returns an empty text if a UUID is unknown.
    """
    if not all(each.has_uuid for each in group):
        return ""
    return "%s in [%s]" % (_attribute(attribute), ", ".join("'%s'" % each.gpu.uuid for each in group))


def _notes(node: Sequence[NodeGpu]) -> list[str]:
    notes = []
    shared = [
        each for each in node if each.sharing in (mps.KEY, time_slicing.KEY) or any(p.mps for p in each.instances or ())
    ]
    if shared:
        notes.append(
            "%s: pods that share a device use one ResourceClaim of their namespace, and their number is not enforced."
            % gpus_text([each.gpu.index for each in shared])
        )
    if any(each.sharing == mps.KEY or any(part.mps for part in each.instances or ()) for each in node):
        notes.append("The DRA driver starts an MPS daemon for each claim, which cannot run together with the layout's.")
    if any(each.entry and not each.has_uuid for each in node):
        notes.append("The claims do not select GPUs, because their UUIDs are unknown until the driver responds.")
    unlisted = [each.gpu.index for each in node if each.entry is None]
    if unlisted:
        notes.append("No entry lists %s, so the DRA driver offers the current state." % gpus_text(unlisted))
    return notes
