# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Dataclasses of a node's desired GPUs and of a backend's offer. All are frozen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Sequence

from ...module_utils.layout.leases import Leases
from ...module_utils.layout.types import Entry
from ...module_utils.model import Gpu
from ..techniques.access import Access
from ..techniques.protocol import FleetTechnique
from ..techniques.registry import technique_of

# MIG strategies of the device plugin: it names resources for MIG devices by profile ("mixed") or like GPUs ("single").
MIXED, SINGLE = MIG_STRATEGIES = ("mixed", "single")


@dataclass(frozen=True)
class NodeInstance:
    """A node's GPU instance.

    `compute_slices` has the slices of its compute instances, and is empty if it is not split. `sharing` is the key of
    the technique that shares the instance, or None. `part` is the technique's part of the layout.
    """

    profile: str
    compute_slices: tuple[int, ...] = ()
    sharing: str | None = None
    part: Any = None

    @property
    def technique(self) -> FleetTechnique | None:
        """Return the technique that shares the instance, or None."""
        return technique_of(self.sharing)

    @property
    def access(self) -> Access | None:
        """Return how pods share the instance.

        Returns None if no technique shares it, or if the technique cannot describe the sharing.
        """
        return self.technique.access(self.part) if self.technique else None


@dataclass(frozen=True)
class NodeGpu:
    """A node's GPU: its desired state, or its current one without a layout entry.

    `entry` is its layout entry, or None. `instances` is None if MIG mode is off.
    """

    gpu: Gpu
    entry: Entry | None
    instances: tuple[NodeInstance, ...] | None = None

    @property
    def where(self) -> str:
        """Return the place for messages: the entry, or the GPU if it has none."""
        return self.entry.where if self.entry else "gpu %d (without an entry)" % self.gpu.index

    @property
    def sharing(self) -> str:
        """Return the entry's sharing mode.

        For a GPU without an entry, this is "mig" or "unlisted".
        """
        return self.entry.sharing if self.entry else "unlisted" if self.instances is None else "mig"

    @property
    def technique(self) -> FleetTechnique | None:
        """Return the technique that shares the whole GPU.

        Returns None for exclusive, shared and MIG.
        """
        return technique_of(self.entry.sharing) if self.entry else None

    @property
    def access(self) -> Access | None:
        """Return how pods share the whole GPU.

        Returns None if no technique shares it, or if the technique cannot describe the sharing.
        """
        return self.technique.access(self.entry.part) if self.entry and self.technique else None

    @property
    def all_access(self) -> tuple[Access, ...]:
        """Return how pods share the GPU and its instances."""
        every = (self.access, *(instance.access for instance in self.instances or ()))
        return tuple(access for access in every if access is not None)

    @property
    def has_uuid(self) -> bool:
        """Return whether the GPU's UUID is known.

        It is unknown before the driver is installed.
        """
        return self.gpu.uuid.startswith("GPU-")


@dataclass(frozen=True)
class Node:
    """A backend's input: a host's GPUs, and the host's node name.

    `mig_strategy` is one of MIG_STRATEGIES. `version` is the scheduler's version, or None if it is unknown.
    """

    gpus: tuple[NodeGpu, ...]
    name: str = ""
    mig_strategy: str = MIXED
    version: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Refusal:
    """A layout entry that a backend does not support, with the problem.

    `backends` has the keys of backends that support the entry, if any.
    """

    where: str
    problem: str
    cure: str = ""
    gpus: tuple[int, ...] = ()
    backends: tuple[str, ...] = ()

    def __str__(self) -> str:
        place = self.where
        if self.gpus and not place.startswith("gpu "):
            place += " (%s)" % gpus_text(self.gpus)
        if self.backends:
            able = "%s can express it (gpu_kubernetes_backend)." % " or ".join(self.backends)
        else:
            able = "No other backend can express it."
        cure = self.cure or "Change the entry, or unset gpu_kubernetes_backend for the host."
        return "%s: %s. %s" % (place, self.problem, able if self.backends and not self.cure else "%s %s" % (cure, able))


@dataclass(frozen=True)
class LeftOut:
    """GPUs that the backend does not offer, with the reason.

    Programs outside Kubernetes can use these GPUs as the layout says.
    """

    where: str
    gpus: tuple[int, ...]
    reason: str

    def __str__(self) -> str:
        place = "" if self.where.startswith("gpu ") else "%s: " % self.where
        are = "are" if len(self.gpus) > 1 else "is"
        return "%s%s %s not offered: %s." % (place, gpus_text(self.gpus), are, self.reason)


@dataclass(frozen=True)
class Request:
    """Settings of a pod that requests an entry's GPUs.

    They are needed if the resource name alone is not enough. `limits` and `environment` are the container's settings,
    `annotations` the pod's. `claim` is the `spec` of a ResourceClaim. `template` is the name of its
    ResourceClaimTemplate, or empty if the role writes none.
    """

    where: str
    name: str
    limits: Mapping[str, int] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    claim: Mapping[str, Any] = field(default_factory=dict)
    template: str = ""


@dataclass(frozen=True)
class Offer:
    """The resources that a backend publishes for a node.

    A layout is never published in part. If there are refusals, all other fields are empty.

    resources    number of each resource by name. For the DRA driver: number of devices by device class and profile
    config       configuration for the backend's plugin on this node
    config_name  name of this configuration in the cluster, or empty if the cluster does not store it
    labels       labels to set on the node
    devices      resource name of each current device, by UUID. Empty if the backend does not publish UUIDs
    registered   numbers that the plugin must register for each GPU, by UUID. Empty if the role does not compare them
    """

    backend: str
    resources: Mapping[str, int] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    requests: tuple[Request, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    notes: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    config_name: str = ""
    devices: Mapping[str, str] = field(default_factory=dict)
    registered: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def gpus_text(indexes: Sequence[int]) -> str:
    """Return the GPUs as text: ``gpu 3``, ``gpus 0, 1``."""
    return "gpu%s %s" % ("s" if len(indexes) > 1 else "", ", ".join(map(str, indexes)))


def refusal(node_gpus: Sequence[NodeGpu], problem: str, cure: str = "") -> Refusal:
    """Return the refusal of an entry, or of a GPU without an entry."""
    return Refusal(node_gpus[0].where, problem, cure, tuple(each.gpu.index for each in node_gpus))


def online_notes(leases: Leases, kind: str) -> list[str]:
    """Return which leases are online, if the entry names some.

    `kind` says what the names are, for example "jobs in the partition".
    """
    if not leases.online:
        return []
    return ["Leases of %s %s are online, and all others are offline." % (kind, " or ".join(leases.online))]


def by_entry(node_gpus: Sequence[NodeGpu]) -> list[list[NodeGpu]]:
    """Return the GPUs grouped by layout entry, in their order.

    Each GPU without an entry is a separate group.
    """
    groups: dict[str, list[NodeGpu]] = {}
    for each in node_gpus:
        groups.setdefault(each.where, []).append(each)
    return list(groups.values())
