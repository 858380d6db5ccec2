# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node's GPUs as the layout wants them, and the result of a mapping. All frozen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Sequence

from ...module_utils.layout.types import Entry
from ...module_utils.model import Gpu
from ...module_utils.techniques.mps.model import Mps

DEVICE_PLUGIN, DRA, HAMI, VOLCANO = BACKENDS = ("nvidia_device_plugin", "nvidia_dra", "hami", "volcano_vgpu")

#: How the device plugin names MIG devices: by their profile, or as GPUs.
MIXED, SINGLE = MIG_STRATEGIES = ("mixed", "single")

#: Keeps the GPU operator's mig-manager off the node, which would replace the layout by its default (all instances removed):
#: https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/gpu-operator-mig.html. Labels that have a value are kept.
WITHOUT_MIG_MANAGER = {"nvidia.com/gpu.deploy.mig-manager": "false"}


@dataclass(frozen=True)
class NodeInstance:
    """A GPU instance of a node. `compute_slices` are those of each part of a split; empty where one part spans it."""

    profile: str
    compute_slices: tuple[int, ...] = ()
    mps: Mps | None = None


@dataclass(frozen=True)
class NodeGpu:
    """A GPU of a node as it will be. `entry` is None where no entry names it: then it is as it was seen.

    `instances` is None where MIG mode is off.
    """

    gpu: Gpu
    entry: Entry | None
    instances: tuple[NodeInstance, ...] | None = None

    @property
    def where(self) -> str:
        """How messages name what is wrong: by the entry, or by the GPU that no entry names."""
        return self.entry.where if self.entry else "gpu %d (no entry names it)" % self.gpu.index

    @property
    def sharing(self) -> str:
        """The entry's word; `mig` or `unlisted` where there is no entry."""
        return self.entry.sharing if self.entry else "unlisted" if self.instances is None else "mig"

    @property
    def has_uuid(self) -> bool:
        """Whether the UUID is known. GPUs that are assumed before a driver answers have none."""
        return self.gpu.uuid.startswith("GPU-")


@dataclass(frozen=True)
class Refusal:
    """What a backend cannot express. `backends` are those that can; empty where none of them does."""

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
        cure = self.cure or "Change the entry, or take the host out of Kubernetes (gpu_kubernetes_backend)."
        return "%s: %s. %s" % (place, self.problem, able if self.backends and not self.cure else "%s %s" % (cure, able))


@dataclass(frozen=True)
class LeftOut:
    """GPUs that the backend does not offer, and why. They stay as the layout says, for use without Kubernetes."""

    where: str
    gpus: tuple[int, ...]
    reason: str

    def __str__(self) -> str:
        place = "" if self.where.startswith("gpu ") else "%s: " % self.where
        are = "are" if len(self.gpus) > 1 else "is"
        return "%s%s %s not offered: %s." % (place, gpus_text(self.gpus), are, self.reason)


@dataclass(frozen=True)
class Request:
    """How a pod asks for what an entry describes, where the name of a resource alone does not say it.

    `limits`, `annotations` and `environment` are a container's and its pod's; `claim` is the `spec` of a ResourceClaim.
    """

    where: str
    name: str
    limits: Mapping[str, int] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    claim: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class NodeMapping:
    """What Kubernetes offers of a node. With a refusal there is nothing else: a part of a layout is not published.

    resources  what the node will offer, by name; for the DRA driver its devices, by class and profile
    config     what the backend's own plugin reads for this node
    labels     of the node
    """

    backend: str
    resources: Mapping[str, int] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    requests: tuple[Request, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    notes: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()


def gpus_text(indexes: Sequence[int]) -> str:
    """Return the GPUs in words: ``gpu 3``, ``gpus 0, 1``."""
    return "gpu%s %s" % ("s" if len(indexes) > 1 else "", ", ".join(map(str, indexes)))


def refusal(node_gpus: Sequence[NodeGpu], problem: str, cure: str = "") -> Refusal:
    """Return the refusal of what one entry, or one GPU without an entry, wants."""
    return Refusal(node_gpus[0].where, problem, cure, tuple(each.gpu.index for each in node_gpus))


def by_entry(node_gpus: Sequence[NodeGpu]) -> list[list[NodeGpu]]:
    """Return the GPUs grouped by their entry, each GPU without one alone, in order."""
    groups: dict[str, list[NodeGpu]] = {}
    for each in node_gpus:
        groups.setdefault(each.where, []).append(each)
    return list(groups.values())
