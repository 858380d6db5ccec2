# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Offer the files of this folder as a technique."""

from __future__ import annotations

from ...gpu_plan import GpuPlan, Plan
from ...nvml import Session
from ...plan_parts import GpuStep
from ...reset import Reset
from .fit import largest_part
from .form import MigForm
from .plan import disturbed, plan
from .steps import SetMigMode


class MigTechnique(MigForm):
    """Divide a GPU into instances. `protocol.DividingTechnique` documents the members."""

    setting = None
    service = None

    plan = staticmethod(plan)
    disturbed = staticmethod(disturbed)
    largest_part = staticmethod(largest_part)

    def apply(self, session: Session, gpu_uuid: str, step: GpuStep, reset: Reset) -> None:
        """Carry out a step."""
        from .apply import apply

        apply(session, gpu_uuid, step, reset)

    def mode_changes(self, gpu_plan: GpuPlan) -> bool:
        """Return whether the plan turns the GPU's MIG mode on or off."""
        return any(isinstance(step, SetMigMode) for step in gpu_plan.steps)

    def leave_pending(self, session: Session, plan: Plan) -> None:
        """Set the MIG modes that the plan changes and leave them pending."""
        from .apply import leave_pending

        leave_pending(session, [each for each in plan.gpus if self.mode_changes(each)])
