# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Describe what a sharing technique does for the rest of the collection.

A technique is a folder beside this file. The tables beside this file name it; nothing else does.
One that sets a value on each whole GPU is a `SettingTechnique`; one that runs something beside the GPUs has a `services.Service`.
"""

from __future__ import annotations

from typing import Any, Iterable, Protocol, Sequence

from ..disturbance import Disturbance
from ..gpu_plan import GpuPlan, Plan, Target
from ..layout.form import Form
from ..layout.types import Layout
from ..model import Gpu
from ..nvml.bounded_session import BoundedSession
from ..nvml.reset import Reset
from ..ownership import Ownership
from ..plan_parts import GpuPart, GpuStep
from ..services import Service
from .observer import Observer


class Technique(Form, Protocol):
    """Share a GPU in one way: what the planner asks of it."""

    #: Name of the setting of a GPU, as its observer has it; None if the technique sets none.
    setting: str | None
    #: What it runs beside the GPUs, if anything. Loaded where it is asked for.
    service: type[Service] | None

    def used(self, layout: Layout | None, private: bool) -> bool:
        """Return whether the layout asks for its service, or the host has files of it. For techniques with a service.

        `private`: the GPUs are simulated for this process alone.
        """


class DividingTechnique(Technique, Protocol):
    """Divide a GPU into instances, which can be shared in their turn."""

    def plan(self, gpu: Gpu, target: Target, ownership: Ownership) -> GpuPlan:
        """Return the plan of the GPU's modes and instances. Raises PlanError if the GPU cannot have them."""

    def disturbed(self, gpu: Gpu, steps: Iterable[GpuStep]) -> tuple[Disturbance, ...]:
        """Return whom steps would disturb on the GPU as it is observed now."""

    def largest_part(self, gpu: Gpu, profiles: Sequence[str]) -> list[str]:
        """Return the largest part of these profiles that fits on the empty GPU."""

    def apply(self, session: BoundedSession, gpu_uuid: str, step: GpuStep, reset: Reset) -> None:
        """Carry out a step. Raises NvmlError if its effect is not seen."""

    def mode_changes(self, gpu_plan: GpuPlan) -> bool:
        """Return whether the plan sets a mode that takes the whole GPU, and perhaps a reset."""

    def leave_pending(self, session: BoundedSession, plan: Plan) -> None:
        """Set such modes, all of them or none, and leave them to a reboot. Raises ApplyError."""


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

    def apply(self, gpu_uuid: str, step: GpuStep) -> None:
        """Carry out a step. Raises NvmlError if its effect is not seen."""

    def difference(self, then: str | None, now: str | None) -> str | None:
        """Return in words how an observed setting differs from a saved one; None if it does not, or cannot be compared."""

    def record(self, directory: str, gpus: Sequence[Gpu], coming: Iterable[str] = ()) -> None:
        """Write down which GPUs have a setting other than the default, and the UUIDs of those that will get one."""
