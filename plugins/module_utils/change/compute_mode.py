# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan and set the compute mode of a GPU: the part `gpu`, which every GPU of a plan has before those of techniques."""

from __future__ import annotations

from typing import ClassVar

from ..errors import NvmlError, PlanError
from ..frozen import frozen
from ..gpu_plan import Target
from ..model import Gpu
from ..nvml.bounded_session import BoundedSession
from ..nvml.calls import NO_PERMISSION, NOT_SUPPORTED
from ..plan_parts import GpuPart, GpuStep

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
    """Return the step to the compute mode of the target. With MIG on the mode belongs to the instances.

    Raises PlanError if the mode cannot be set, as far as that shows beforehand (`Gpu.compute_mode_fixed`).
    """
    # A GPU goes into MIG mode in the default mode. One that comes out of it is set, for its mode could not be read.
    now = None if gpu.mig.enabled else gpu.compute_mode
    wanted = target.compute_mode
    if target.mig_enabled:
        wanted = None if now is None else DEFAULT
    if wanted == DEFAULT and gpu.compute_mode_fixed and now is None and not gpu.mig.enabled:
        # A GPU without compute modes is in the default one.
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
    """Carry out a step. Raises NvmlError."""
    try:
        session.set_compute_mode(gpu_uuid, step.mode)
    except NvmlError as error:
        if error.code in (NOT_SUPPORTED, NO_PERMISSION):
            # No driver tells beforehand, except where `plan` refuses.
            error.cure = _CURE
        raise


def _words(mig_enabled: bool, mode: str | None) -> str:
    return "" if mig_enabled else "compute mode %s" % (mode or "unknown")
