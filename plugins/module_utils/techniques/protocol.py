# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define the interface of a sharing technique.

A technique is a folder next to this file. Only the tables next to this file name the folder.
A technique that sets a value on each whole GPU is a `SettingTechnique`. A technique that runs daemons or agents has a
`services.Service`.
"""

from __future__ import annotations

from typing import Any, Iterable, Protocol, Sequence

from ..layout.form import Form
from ..layout.types import Layout
from ..model import Gpu
from ..plan.disturbance import Disturbance
from ..plan.gpu_plan import GpuPlan, Plan, Target
from ..plan.ownership import Ownership
from ..plan.parts import GpuPart, GpuStep
from ..plan.services import Service
from ..vendors.nvidia.nvml.bounded_session import BoundedSession
from ..vendors.nvidia.nvml.reset import Reset
from .observer import Observer


class Technique(Form, Protocol):
    """A technique for sharing a GPU, as the planner uses it."""

    #: Name of the GPU setting, as in the technique's observer. None if the technique sets no value.
    setting: str | None
    #: Returns the class of the technique's service, which is loaded on demand. None if the technique has no service.
    service: type[Service] | None

    def used(self, layout: Layout | None, private: bool) -> bool:
        """Return whether the layout needs the service, or the host has its files.

        Only for techniques with a service. `private` is true if the GPUs are simulated for this process only.
        """


class DividingTechnique(Technique, Protocol):
    """A technique that divides a GPU into instances.

    Other techniques can share the instances.
    """

    def plan(self, gpu: Gpu, target: Target, ownership: Ownership) -> GpuPlan:
        """Return the plan for the modes and instances of the GPU.

        Raises PlanError if the GPU cannot have them.
        """

    def disturbed(self, gpu: Gpu, steps: Iterable[GpuStep]) -> tuple[Disturbance, ...]:
        """Return the holders that the steps would disturb on the GPU as read now."""

    def largest_part(self, gpu: Gpu, profiles: Sequence[str]) -> list[str]:
        """Return the largest subset of these profiles that fits on the empty GPU."""

    def apply(self, session: BoundedSession, gpu_uuid: str, step: GpuStep, reset: Reset) -> None:
        """Apply a step. Raises NvmlError if the step has no effect."""

    def mode_changes(self, gpu_plan: GpuPlan) -> bool:
        """Return whether the plan sets a mode of the whole GPU, which may need a reset."""

    def leave_pending(self, session: BoundedSession, plan: Plan) -> None:
        """Set the changed modes and leave them pending until the host reboots.

        If one mode cannot be set, all are reverted and ApplyError is raised.
        """


class SettingTechnique(Technique, Protocol):
    """A technique that sets one value on the whole GPU."""

    #: Value on GPUs that do not use the technique.
    default: str
    #: The reader for the current value.
    observer: Observer

    def wanted(self, part: Any) -> str:
        """Return the value of the part, or the default if `part` is None."""

    def current(self, gpu: Gpu) -> str | None:
        """Return the value that restores the observed state of the GPU.

        Returns None if the value must not be changed.
        """

    def plan(self, gpu: Gpu, wanted: str | None, where: str) -> GpuPart:
        """Return the steps that set the value `wanted`. None changes nothing.

        Raises PlanError if the GPU does not support the value.
        """

    def apply(self, gpu_uuid: str, step: GpuStep) -> None:
        """Apply a step. Raises NvmlError if the step has no effect."""

    def difference(self, then: str | None, now: str | None) -> str | None:
        """Return the difference between a saved and an observed value as text, or None."""

    def record(self, directory: str, gpus: Sequence[Gpu], changing: Iterable[str] = ()) -> None:
        """Record the GPUs that have a value other than the default.

        `changing` has the UUIDs of GPUs that will get such a value.
        """
