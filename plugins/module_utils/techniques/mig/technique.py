# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Combine the files of this folder into a technique."""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterable, Sequence

from ...model import Gpu
from ...plan.disturbance import Disturbance
from ...plan.gpu_plan import GpuPlan, Plan, Target
from ...plan.ownership import Ownership
from ...plan.parts import GpuStep
from ...vendors.nvidia.nvml.bounded_session import BoundedSession
from .form import MigForm

if TYPE_CHECKING:
    from ...vendors.nvidia.nvml.reset import Reset


class MigTechnique(MigForm):
    """Divide a GPU into instances. `protocol.DividingTechnique` documents the members.

    If a GPU neither has nor needs MIG, the planner is not loaded.
    """

    setting = None
    service = None

    def plan(self, gpu: Gpu, target: Target, ownership: Ownership) -> GpuPlan:
        """Return the plan of the GPU's MIG mode and instances."""
        mig = gpu.mig
        if not (target.mig_enabled or mig.enabled or mig.pending or mig.instances):
            return GpuPlan(gpu, target)
        from .plan import plan

        return plan(gpu, target, ownership)

    def disturbed(self, gpu: Gpu, steps: Iterable[GpuStep]) -> tuple[Disturbance, ...]:
        """Return the holders that steps would disturb on the GPU."""
        from .plan import disturbed

        return disturbed(gpu, steps)

    def largest_part(self, gpu: Gpu, profiles: Sequence[str]) -> list[str]:
        """Return the largest subset of these profiles that fits on the empty GPU."""
        from .fit import largest_part

        return largest_part(gpu, profiles)

    def apply(self, session: BoundedSession, gpu_uuid: str, step: GpuStep, reset: Reset) -> None:
        """Apply a step."""
        from .apply import apply

        apply(session, gpu_uuid, step, reset)

    def mode_changes(self, gpu_plan: GpuPlan) -> bool:
        """Return whether the plan turns the GPU's MIG mode on or off."""
        if not gpu_plan.instance_steps:
            return False
        from .steps import SetMigMode

        return any(isinstance(step, SetMigMode) for step in gpu_plan.instance_steps)

    def leave_pending(self, session: BoundedSession, plan: Plan) -> None:
        """Set the changed MIG modes and leave them pending."""
        from .apply import leave_pending

        leave_pending(session, [each for each in plan.gpus if self.mode_changes(each)])
