# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan and set the compute mode of a GPU: the part `gpu`, which every GPU of a plan has before those of techniques."""

from __future__ import annotations

from typing import ClassVar

from ..frozen import frozen
from ..gpu_plan import Target
from ..model import Gpu
from ..nvml.bounded_session import BoundedSession
from ..plan_parts import GpuPart, GpuStep

KEY = "gpu"
DEFAULT, EXCLUSIVE_PROCESS = "default", "exclusive_process"


@frozen
class SetComputeMode(GpuStep):
    """Set the compute mode of a whole GPU."""

    technique: ClassVar[str] = KEY
    mode: str

    def __str__(self) -> str:
        return "set compute mode %s" % self.mode


def plan(gpu: Gpu, target: Target) -> GpuPart:
    """Return the step to the compute mode of the target. With MIG on the mode belongs to the instances."""
    # A GPU goes into MIG mode in the default mode. One that comes out of it is set, for its mode could not be read.
    now = None if gpu.mig.enabled else gpu.compute_mode
    wanted = target.compute_mode
    if target.mig_enabled:
        wanted = None if now is None else DEFAULT
    steps = () if wanted in (None, now) else (SetComputeMode(wanted),)
    return GpuPart(
        steps, _words(gpu.mig.enabled, gpu.compute_mode), _words(target.mig_enabled, wanted or gpu.compute_mode)
    )


def apply(session: BoundedSession, gpu_uuid: str, step: SetComputeMode) -> None:
    """Carry out a step. Raises NvmlError."""
    session.set_compute_mode(gpu_uuid, step.mode)


def _words(mig_enabled: bool, mode: str | None) -> str:
    return "" if mig_enabled else "compute mode %s" % (mode or "unknown")
