# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan and set a GPU's compute mode, which is a setting of the vendor NVIDIA."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ...errors import NvmlError, PlanError
from ...frozen import frozen
from ...model import Gpu
from ...plan.parts import GpuPart, GpuStep

if TYPE_CHECKING:
    from ...layout.form import Form
    from ...plan.gpu_plan import Target
    from .nvml.bounded_session import BoundedSession

KEY, SETTING = "gpu", "compute_mode"
_CURE = "Choose a sharing that keeps the default mode (sharing: shared), or set the mode on the host of this guest."
DEFAULT, EXCLUSIVE_PROCESS = "default", "exclusive_process"


@frozen
class SetComputeMode(GpuStep):
    """Set the compute mode of a whole GPU."""

    technique: ClassVar[str] = KEY
    mode: str

    def __str__(self) -> str:
        return "set compute mode %s" % self.mode


class ComputeMode:
    """The compute mode as a setting. `protocol.VendorSetting` documents the members."""

    key = KEY
    setting = SETTING

    def wanted(self, sharing: str, form: Form | None) -> str | None:
        """Return the compute mode for a kind of sharing.

        Returns None for MIG, because the mode is set for the instances.
        """
        if form is not None:
            return form.compute_mode
        return EXCLUSIVE_PROCESS if sharing == "exclusive" else DEFAULT

    def current(self, gpu: Gpu) -> str | None:
        """Return the compute mode, or None in MIG mode."""
        return None if gpu.mig.enabled else gpu.compute_mode

    def observed(self, gpu: Gpu) -> str | None:
        """Return the compute mode."""
        return gpu.compute_mode

    def plan(self, gpu: Gpu, target: Target) -> GpuPart:
        """Return the step that sets the target's compute mode."""
        return _plan(gpu, target)

    def apply(self, session: BoundedSession, gpu_uuid: str, step: SetComputeMode) -> None:
        """Apply a step. Raises NvmlError."""
        try:
            session.set_compute_mode(gpu_uuid, step.mode)
        except NvmlError as error:
            from .nvml.calls import NO_PERMISSION, NOT_SUPPORTED

            if error.code in (NOT_SUPPORTED, NO_PERMISSION):
                # `plan` refuses GPUs whose fixed mode is known. For other GPUs, only this call shows that the mode is
                # fixed.
                error.cure = _CURE
            raise

    def difference(self, then: str | None, now: str | None) -> str | None:
        """Return the difference as text, or None."""
        return None if then == now else "compute mode was %s and is %s" % (then, now)

    def untouched(self, gpu: Gpu, wanted: str | None) -> bool:
        """Return whether the compute mode is the wanted one or the one after a boot."""
        return gpu.mig.enabled or gpu.compute_mode in (None, DEFAULT, wanted)


def _plan(gpu: Gpu, target: Target) -> GpuPart:
    """Return the step that sets the target's compute mode.

    If MIG is enabled, the compute mode is set on the instances and not on the GPU. Raises PlanError if the driver is
    known to refuse the mode (`Gpu.compute_mode_fixed`).
    """
    # A GPU enters MIG mode with the default compute mode. When it leaves MIG mode, the compute mode is always set,
    # because it could not be read before.
    now = None if gpu.mig.enabled else gpu.compute_mode
    divided = target.division is not None
    wanted = target.settings.get(SETTING)
    if divided:
        wanted = None if now is None else DEFAULT
    if wanted == DEFAULT and gpu.compute_mode_fixed and now is None and not gpu.mig.enabled:
        # Treat a GPU without compute modes like a GPU in the default mode.
        wanted = None
    if wanted not in (None, now) and gpu.compute_mode_fixed:
        raise PlanError(
            "%s on %s" % (target.where, gpu.label),
            "its compute mode cannot be set to %s: %s" % (wanted, gpu.compute_mode_fixed),
            _CURE,
        )
    steps = () if wanted in (None, now) else (SetComputeMode(wanted),)
    return GpuPart(steps, _words(gpu.mig.enabled, gpu.compute_mode), _words(divided, wanted or gpu.compute_mode))


def _words(mig_enabled: bool, mode: str | None) -> str:
    return "" if mig_enabled else "compute mode %s" % (mode or "unknown")
