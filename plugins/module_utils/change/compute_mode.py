# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan and set the compute mode of a GPU.

The compute mode is the plan part `gpu`. It precedes the parts of the techniques in every plan.
"""

from __future__ import annotations

from typing import ClassVar

from ..errors import NvmlError, PlanError
from ..frozen import frozen
from ..model import Gpu
from ..plan.gpu_plan import Target
from ..plan.parts import GpuPart, GpuStep
from ..vendors.nvidia.nvml.bounded_session import BoundedSession
from ..vendors.nvidia.nvml.calls import NO_PERMISSION, NOT_SUPPORTED

KEY = "gpu"
_CURE = "Choose a sharing that keeps the default mode (sharing: shared), or set the mode on the host of this guest."
DEFAULT, EXCLUSIVE_PROCESS = "default", "exclusive_process"


@frozen
class SetComputeMode(GpuStep):
    """Set the compute mode of a whole GPU."""

    technique: ClassVar[str] = KEY
    mode: str

    def __str__(self) -> str:
        return "set compute mode %s" % self.mode


def plan(gpu: Gpu, target: Target) -> GpuPart:
    """Return the step that sets the target's compute mode.

    If MIG is enabled, the compute mode is set on the instances and not on the GPU. Raises PlanError if the driver is
    known to refuse the mode (`Gpu.compute_mode_fixed`).
    """
    # A GPU that enters MIG mode starts with the default compute mode. When a GPU leaves MIG mode, its compute mode is
    # always set, because it could not be read before.
    now = None if gpu.mig.enabled else gpu.compute_mode
    wanted = target.compute_mode
    if target.mig_enabled:
        wanted = None if now is None else DEFAULT
    if wanted == DEFAULT and gpu.compute_mode_fixed and now is None and not gpu.mig.enabled:
        # A GPU without compute modes counts as a GPU in the default mode.
        wanted = None
    if wanted not in (None, now) and gpu.compute_mode_fixed:
        raise PlanError(
            "%s on %s" % (target.where, gpu.label),
            "its compute mode cannot be set to %s: %s" % (wanted, gpu.compute_mode_fixed),
            _CURE,
        )
    steps = () if wanted in (None, now) else (SetComputeMode(wanted),)
    return GpuPart(
        steps, _words(gpu.mig.enabled, gpu.compute_mode), _words(target.mig_enabled, wanted or gpu.compute_mode)
    )


def apply(session: BoundedSession, gpu_uuid: str, step: SetComputeMode) -> None:
    """Apply a step. Raises NvmlError."""
    try:
        session.set_compute_mode(gpu_uuid, step.mode)
    except NvmlError as error:
        if error.code in (NOT_SUPPORTED, NO_PERMISSION):
            # The driver reports this only when the mode is set, except in the cases that `plan` refuses.
            error.cure = _CURE
        raise


def _words(mig_enabled: bool, mode: str | None) -> str:
    return "" if mig_enabled else "compute mode %s" % (mode or "unknown")
