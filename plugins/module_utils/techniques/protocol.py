# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Describe what a sharing technique does for the rest of the collection.

A technique is a folder beside this file. The tables in `registry` and `observers` name it; nothing else does.
One that sets a value on each whole GPU is a `SettingTechnique`; one that runs something beside the GPUs has a `services.Service`.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable, Protocol, Sequence

from ..layout_fields import PartContext
from ..layout_reader import Key, Node
from ..layout_types import Selector
from ..model import Gpu, GpuInstance
from ..plan_parts import GpuPart, PartStep
from ..services import Service
from .observer import Observer


class Technique(Protocol):
    """Share a GPU in one way: what the parser, the planner and the export ask of it."""

    #: Word in `gpu_layout`, both as `sharing` and as the key of its part.
    key: str
    #: How the part is written, for messages.
    example: Key
    #: Whether a MIG instance can have a part of it.
    inside_mig: bool
    #: Compute mode of GPUs that use the technique.
    compute_mode: str
    #: Name of the setting of a GPU, as its observer has it; None if the technique sets none.
    setting: str | None
    #: What it runs beside the GPUs, if anything.
    service: type[Service] | None

    def parse(self, node: Node, context: PartContext) -> Any:
        """Return the part of an entry, or of a MIG instance, as a frozen value. Reports problems to the node."""

    def to_data(self, part: Any) -> dict[str, Any]:
        """Return the part as `gpu_layout` has it, without what equals a default."""

    def divides(self, part: Any) -> bool:
        """Return whether the part is divided between the GPUs of its entry, so that none of them can be left out."""

    def export(self, gpu: Gpu, seen: Sequence[Any], instance: GpuInstance | None = None) -> Any:
        """Return the part of an entry that describes the GPU or its instance; None if it does not use the technique.

        `seen` is what its service sees on the host.
        """

    def export_together(
        self, gpus: Sequence[Gpu], seen: Sequence[Any], pin: Callable[[Gpu], Selector] | None, left_out: list[str]
    ) -> dict[str, Any]:
        """Return by UUID the parts of GPUs that can only be described together; None for a GPU that no layout can describe.

        GPUs with equal parts share an entry. `pin` returns the name of a GPU, if parts are to name GPUs. Adds to `left_out` a
        sentence for what no layout can express.
        """

    def describe(self, part: Any) -> str:
        """Return an exported part in words, for a GPU that no layout can express."""


class SettingTechnique(Technique, Protocol):
    """Share a GPU by one value that is set on the whole GPU."""

    #: Value of GPUs that do not use the technique.
    default: str
    #: Reads what is there.
    observer: Observer

    def wanted(self, part: Any) -> str:
        """Return the setting that the part asks for; the default if `part` is None."""

    def current(self, gpu: Gpu) -> str | None:
        """Return the setting that leads back to the GPU as observed; None to leave it."""

    def plan(self, gpu: Gpu, wanted: str | None, where: str) -> GpuPart:
        """Return the steps to a setting; None leaves it. Raises PlanError if the GPU cannot have it."""

    def apply(self, gpu_uuid: str, step: PartStep) -> None:
        """Carry out a step. Raises NvmlError if its effect is not seen."""

    def difference(self, then: str | None, now: str | None) -> str | None:
        """Return in words how an observed setting differs from a saved one; None if it does not, or cannot be compared."""

    def record(self, directory: str, gpus: Sequence[Gpu], coming: Iterable[str] = ()) -> None:
        """Write down which GPUs have a setting other than the default, and the UUIDs of those that will get one."""
