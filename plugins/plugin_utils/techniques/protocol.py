# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define what the controller needs to know about a sharing technique."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping, NamedTuple, Sequence

from .access import Access

if TYPE_CHECKING:
    from ...module_utils.layout.types import Entry, Selector
    from ...module_utils.model import Gpu

State = Mapping[str, Any]


class Size(NamedTuple):
    """The size of a part of a GPU."""

    memory_mib: int
    sm_percent: int


class Part(NamedTuple):
    """A GPU part of the workload `name` in a packing result.

    The workload has one part of this size on each of `gpus` GPUs.
    """

    name: str
    gpu_index: int
    size: Size
    gpus: int = 1


class FleetTechnique:
    """A sharing technique, as the controller uses it.

    Each technique derives from this class. With the defaults, a technique is never proposed, its GPUs are never
    rearranged, and no scheduler backend offers it.
    """

    #: Value of `sharing` in `gpu_layout`.
    key: str
    #: Name in messages.
    title: str
    #: Name of the process that serves the GPU on the host, or empty.
    server: str = ""

    # ---------------------------------------------------------------------- results of hosts

    #: Key of the technique's rows in gpu_info's result, or empty if it has none.
    rows: str = ""
    #: Format of such a row (host_values.py).
    row_format: Mapping[str, Any] = {}
    #: Names of values that a row must have if its `gpus` is not empty.
    row_needs: tuple[str, ...] = ()
    #: Kinds of holders that are processes of the technique.
    holder_kinds: tuple[str, ...] = ()

    # ---------------------------------------------------------------------- workloads and their histories

    #: Whether the workloads are tenants: `rows` lists them, a layout has their names and quotas, and the metrics have
    #: each tenant's history.
    has_tenants: bool = False
    #: Whether the metrics have one common history for all workloads on a GPU. If so, right-sizing excludes the GPU.
    mixes_histories: bool = True

    def serves(self, state: State, gpu_uuid: str) -> str:
        """Return what serves the GPU according to gpu_info.

        Returns "" if nothing does, or if its workloads have separate histories.
        """
        return ""

    def quota(self, row: Mapping[str, Any]) -> Size:
        """Return the quota of a tenant. Called only for techniques with tenants."""
        raise NotImplementedError

    def fixed(self, rows: Sequence[Mapping[str, Any]], entry: Entry | None) -> str:
        """Return why the entry of a GPU with these tenants must not be rewritten.

        Returns "" if it may be. A rewritten entry only has the tenants' names and quotas, and loses other settings.
        """
        return "right-sizing does not change %s" % self.title

    def tenants(self, part: Any) -> Sequence[Any]:
        """Return the tenants in the technique's part of an entry, in its order."""
        return ()

    # ---------------------------------------------------------------------- packing

    #: Whether packing may divide a GPU into parts of this technique.
    proposed: bool = False
    #: Whether all parts of a GPU have the size of the largest one.
    equal_parts: bool = False
    #: Why a workload cannot have parts of several GPUs, or empty if it can.
    one_gpu: str = ""

    def most_parts(self, compute_capability: str | None) -> int | None:
        """Return the maximum number of a GPU's parts.

        Returns None if it is unlimited or unknown.
        """
        return None

    def holds(self, gpu: Size, parts: Sequence[Size]) -> bool:
        """Return whether a GPU with this capacity holds the parts.

        The check of a packing result calls this. It asks the technique's planner, and uses no code of the packing
        search.
        """
        return sum(p.memory_mib for p in parts) <= gpu.memory_mib and sum(p.sm_percent for p in parts) <= gpu.sm_percent

    def part(self, parts: Sequence[Part]) -> dict[str, Any]:
        """Return the technique's part of a `gpu_layout` entry for these parts of GPUs.

        `parts` are one GPU's parts, in the order of the workloads. GPUs with a common tenant share an entry, so `parts`
        then has the parts of all of them.
        """
        raise NotImplementedError

    # ---------------------------------------------------------------------- right-sizing

    #: Percentage of a GPU up to which offline workloads may use it next to an online one. None if the technique cannot
    #: give online workloads precedence.
    waterline_percent: int | None = None

    def colocated_part(self, online_mib: int, offline_mib: Sequence[int]) -> dict[str, Any]:
        """Return the part of an entry for one online workload and offline ones.

        The arguments are the workloads' memory quotas. Only called if `waterline_percent` is not None.
        """
        raise NotImplementedError

    #: Whether the driver lets workloads take turns. They then fit on a GPU if their combined histories fit.
    takes_turns: bool = False
    #: Description of a GPU part. Empty if its size describes it.
    part_text: str = ""
    #: Risk for a workload that has not used the technique before, or empty.
    risk: str = ""

    def suits(self, isolation: str, latency: str) -> str:
        """Return why the technique suits a workload with these requirements.

        Returns "" if it does not. `isolation` and `latency` are values of `gpu_rightsize_workloads`.
        """
        return ""

    def unfit(self, compute_capability: str | None, model: str) -> str:
        """Return why the technique does not suit GPUs of this model, or "".

        `model` is a key of the catalogue.
        """
        return ""

    # ---------------------------------------------------------------------- layouts and schedulers

    def access(self, part: Any) -> Access | None:
        """Return how pods share the GPU or instance with this part of a layout.

        Returns None if no class in access.py describes it. Only backends that know the technique then offer it.
        """
        return None

    def lease_room(self, gpu: Gpu, entry: Entry | None) -> tuple[int, float, int] | None:
        """Return the room for leases on a GPU: bytes, SM percent and their number.

        Returns None if the technique has no leases, or if other workloads of the entry may be on the GPU.
        """
        return None

    def selectors(self, part: Any) -> tuple[Selector, ...]:
        """Return the GPU selectors in a part of a layout."""
        return ()
