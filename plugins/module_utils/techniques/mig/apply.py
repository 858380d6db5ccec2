# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Carry out the steps of MIG on one GPU, or leave its mode to a reboot."""

from __future__ import annotations

import contextlib
from typing import Sequence

from ...errors import ApplyError, FleetError, NvmlError, ResetRefusedError, UnansweredCallError
from ...gpu_plan import GpuPlan
from ...nvml.bounded_session import BoundedSession
from ...nvml.calls import IN_USE, RESET_REQUIRED, SUCCESS
from ...nvml.reset import Reset
from .steps import (
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    MigStep,
    SetMigMode,
)


def apply(session: BoundedSession, gpu_uuid: str, step: MigStep, reset: Reset) -> None:
    """Carry out a step. Raises NvmlError, and ResetRefusedError where a mode needs a reset that the GPU refuses."""
    if isinstance(step, SetMigMode):
        _set_mig_mode(session, gpu_uuid, step.enabled, reset)
    elif isinstance(step, DestroyComputeInstance):
        session.destroy_compute_instance(gpu_uuid, step.gpu_instance_id, step.compute_instance_id)
    elif isinstance(step, DestroyGpuInstance):
        session.destroy_gpu_instance(gpu_uuid, step.gpu_instance_id)
    elif isinstance(step, CreateGpuInstance):
        session.create_gpu_instance(gpu_uuid, step.profile_id, step.placement)
    elif isinstance(step, CreateComputeInstance):
        session.create_compute_instance(
            gpu_uuid, step.profile_id, step.gpu_instance_start, step.compute_slices, step.start
        )
    else:
        raise TypeError("not a step: %r" % (step,))


def leave_pending(session: BoundedSession, plans: Sequence[GpuPlan]) -> None:
    """Set the MIG modes that the plans change and leave them pending: a reboot of the host is to follow at once.

    All of them or none: raises ApplyError where one cannot be set, with outcome "old", or "unknown" where the driver hangs.
    """
    set_so_far: list[str] = []
    try:
        for gpu_plan in plans:
            set_so_far.append(gpu_plan.gpu.uuid)
            session.set_mig_mode(gpu_plan.gpu.uuid, gpu_plan.target.mig_enabled)
    except BaseException as error:
        for gpu in set_so_far:
            with contextlib.suppress(FleetError):
                session.set_mig_mode(gpu, session.mig_mode(gpu)[0])
        if not isinstance(error, FleetError):
            raise
        outcome = "unknown" if isinstance(error, UnansweredCallError) else "old"
        raise ApplyError(error.where, error.problem, error.cure, outcome=outcome) from error


def _set_mig_mode(session: BoundedSession, gpu: str, enabled: bool, reset: Reset) -> None:
    """Set the mode and see it active. The call succeeds even where the mode stays pending: the status tells."""
    before = session.mig_mode(gpu)[0]
    status = session.set_mig_mode(gpu, enabled)
    where = "gpu %s" % gpu
    try:
        if status == IN_USE:
            problem = "it is in use, so its MIG mode cannot change now"
            cure = "Stop what uses it and run again. NVML does not list nvidia-persistenced, DCGM and nvidia_drm: see fuser."
            raise NvmlError(where, problem, cure, code=IN_USE, gpu=gpu)
        if status not in (SUCCESS, RESET_REQUIRED):
            raise NvmlError(where, "its MIG mode did not change (activation status %d)" % status, gpu=gpu)
        if session.mig_mode(gpu)[0] != enabled:
            with session.suspended():
                reset(gpu, session.simulated)
        if session.mig_mode(gpu)[0] != enabled:
            problem = "its MIG mode is still pending after a reset"
            raise ResetRefusedError(where, problem, "Look at the kernel log.", gpu=gpu)
    except FleetError:
        # A mode left pending would take effect at the next reset, unannounced.
        with contextlib.suppress(FleetError):
            session.set_mig_mode(gpu, before)
        raise
