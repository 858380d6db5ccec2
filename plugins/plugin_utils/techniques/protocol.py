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
    """A part of a GPU for the workload `name`, in the result of packing.

    `gpus` is the number of GPUs of the workload. The workload has such a part on each of them.
    """

    name: str
    gpu_index: int
    size: Size
    gpus: int = 1


class FleetTechnique:
    """A sharing technique, as the controller uses it.

    A technique derives from this class. With the defaults, the technique is never proposed, its GPUs are never rearranged, and
    no scheduler backend offers it.
    """

    #: Value of `sharing` in `gpu_layout`.
    key: str
    #: Name in messages.
    title: str
    #: Name of the process that serves the GPU on the host, or empty.
    server: str = ""

    # ---------------------------------------------------------------------- results of hosts

    #: Name of the technique's rows in the result of gpu_info, or empty if it has none.
    rows: str = ""
    #: Format of such a row (host_values.py).
    row_format: Mapping[str, Any] = {}
    #: Names of the values that a row must have if its value `gpus` is not empty.
    row_needs: tuple[str, ...] = ()
    #: Kinds of holders that are processes of the technique.
    holder_kinds: tuple[str, ...] = ()

    # ---------------------------------------------------------------------- workloads and their histories

    #: Whether the workloads are tenants: `rows` lists them, and a layout has their names and quotas. Each tenant has a
    #: history in the metrics.
    has_tenants: bool = False
    #: Whether the metrics have only one common history for all workloads on a GPU. If so, right-sizing excludes the
    #: GPU.
    mixes_histories: bool = True

    def serves(self, state: State, gpu_uuid: str) -> str:
        """Return what serves the GPU according to gpu_info.

        Returns an empty text if nothing serves it, or if the histories of its workloads are separate.
        """
        return ""

    def quota(self, row: Mapping[str, Any]) -> Size:
        """Return the quota of a tenant. Called only for techniques with tenants."""
        raise NotImplementedError

    def fixed(self, rows: Sequence[Mapping[str, Any]], entry: Entry | None) -> str:
        """Return why the entry of a GPU with these tenants must not be rewritten.

        Returns an empty text if the entry may be rewritten. After that, it has only the names and quotas of tenants,
        and other settings are lost.
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
    #: The reason why a workload cannot have parts of several GPUs. Empty if it can.
    one_gpu: str = ""

    def most_parts(self, compute_capability: str | None) -> int | None:
        """Return the maximum number of parts of a GPU.

        Returns None if the number is unlimited or unknown.
        """
        return None

    def holds(self, gpu: Size, parts: Sequence[Size]) -> bool:
        """Return whether a GPU with this capacity holds the parts.

        The check of a packing result calls this method. It asks the technique's planner, and uses no code of the
        packing search.
        """
        return sum(p.memory_mib for p in parts) <= gpu.memory_mib and sum(p.sm_percent for p in parts) <= gpu.sm_percent

    def part(self, parts: Sequence[Part]) -> dict[str, Any]:
        """Return the technique's part of a `gpu_layout` entry for these parts of GPUs.

        They are the parts of one GPU, in the order of the workloads. If a tenant has several GPUs, these GPUs share an
        entry, so `parts` has the parts of all of them.
        """
        raise NotImplementedError

    # ---------------------------------------------------------------------- right-sizing

    #: Percentage of a GPU up to which offline workloads may use it beside an online one. None if the technique cannot give
    #: an online workload precedence.
    waterline_percent: int | None = None

    def colocated_part(self, online_mib: int, offline_mib: Sequence[int]) -> dict[str, Any]:
        """Return the part of an entry for one online workload and offline ones.

        The workloads have these quotas of memory. Called only if `waterline_percent` is not None.
        """
        raise NotImplementedError

    #: Whether the driver lets workloads take turns. If so, workloads fit on a GPU if their combined histories fit.
    takes_turns: bool = False
    #: Description of a part of a GPU, or empty if the size of the part describes it.
    part_text: str = ""
    #: The risk for a workload that did not use the technique before, or empty.
    risk: str = ""

    def suits(self, isolation: str, latency: str) -> str:
        """Return why the technique suits a workload with these requirements.

        Returns an empty text if the technique does not suit it. `isolation` and `latency` are values of
        `gpu_rightsize_workloads`.
        """
        return ""

    def unfit(self, compute_capability: str | None, model: str) -> str:
        """Return why the technique does not suit GPUs of this model, or an empty text.

        `model` is a key of the catalogue.
        """
        return ""

    # ---------------------------------------------------------------------- layouts and schedulers

    def access(self, part: Any) -> Access | None:
        """Return how pods share the GPU or instance with this part of a layout.

        Returns None if no class of access.py describes it. In this case, only the backends that know the technique
        offer it.
        """
        return None

    def lease_room(self, gpu: Gpu, entry: Entry | None) -> tuple[int, float, int] | None:
        """Return the room for leases on a GPU: bytes, SM percent and their number.

        Returns None if the technique has no leases, or if other workloads of the entry may be on the GPU.
        """
        return None

    def selectors(self, part: Any) -> tuple[Selector, ...]:
        """Return the GPU selectors within a part of a layout."""
        return ()
