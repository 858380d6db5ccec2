# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define the interface of a sharing technique.

A technique is a folder next to this file, and only the tables next to this file name it.
One that sets a value on each whole GPU is a `SettingTechnique`. One that runs daemons or agents has a `services.Service`.
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
    """A technique of sharing a GPU, as the planner uses it."""

    #: Name of the GPU setting, as in its observer. None if the technique sets none.
    setting: str | None
    #: The loader of its service, if any. Loaded on demand.
    service: type[Service] | None

    def used(self, layout: Layout | None, private: bool) -> bool:
        """Return whether the layout needs its service, or the host has files of it. For techniques with a service.

        `private`: the GPUs are simulated for this process alone.
        """


class DividingTechnique(Technique, Protocol):
    """A technique that divides a GPU into instances, which other techniques can share."""

    def plan(self, gpu: Gpu, target: Target, ownership: Ownership) -> GpuPlan:
        """Return the plan of the GPU's modes and instances. Raises PlanError if the GPU cannot have them."""

    def disturbed(self, gpu: Gpu, steps: Iterable[GpuStep]) -> tuple[Disturbance, ...]:
        """Return the holders that steps would disturb on the GPU as read now."""

    def largest_part(self, gpu: Gpu, profiles: Sequence[str]) -> list[str]:
        """Return the largest subset of these profiles that fits on the empty GPU."""

    def apply(self, session: BoundedSession, gpu_uuid: str, step: GpuStep, reset: Reset) -> None:
        """Carry out a step. Raises NvmlError if its effect is not seen."""

    def mode_changes(self, gpu_plan: GpuPlan) -> bool:
        """Return whether the plan sets a mode of the whole GPU, which may need a reset."""

    def leave_pending(self, session: BoundedSession, plan: Plan) -> None:
        """Set such modes, all or none, and leave them pending for a reboot. Raises ApplyError."""


class SettingTechnique(Technique, Protocol):
    """A technique that sets one value on the whole GPU."""

    #: Value on GPUs that do not use the technique.
    default: str
    #: Reads the current value.
    observer: Observer

    def wanted(self, part: Any) -> str:
        """Return the part's setting, or the default if `part` is None."""

    def current(self, gpu: Gpu) -> str | None:
        """Return the setting that restores the GPU's observed state, or None to leave it."""

    def plan(self, gpu: Gpu, wanted: str | None, where: str) -> GpuPart:
        """Return the steps to a setting. None leaves it. Raises PlanError if the GPU does not support it."""

    def apply(self, gpu_uuid: str, step: GpuStep) -> None:
        """Carry out a step. Raises NvmlError if its effect is not seen."""

    def difference(self, then: str | None, now: str | None) -> str | None:
        """Return the difference of an observed from a saved setting in words, or None."""

    def record(self, directory: str, gpus: Sequence[Gpu], changing: Iterable[str] = ()) -> None:
        """Record the GPUs with a setting other than the default, and the UUIDs of those that will get one."""
