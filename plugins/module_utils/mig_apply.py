# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Carry a plan out, look again, and go back to the old layout where a step fails."""

from __future__ import annotations

from typing import Callable, Sequence

from . import mig_plan, mig_steps
from .errors import ApplyError, FleetError, NvmlError
from .mig_steps import GpuPlan, Plan, Target
from .model import Host
from .nvml import IN_USE, SUCCESS, Session
from .reset import reset_gpu


def apply(session: Session, plan: Plan, reset: Callable[[str, bool], None] = reset_gpu) -> Host:
    """Carry out `plan` and return the host as it was observed afterwards.

    Raises ApplyError: before the first step where the plan would end something that runs; after a failed step, then
    with outcome "old" (the layout of before is back), or "unknown" where even that failed.
    """
    if plan.disturbs:
        raise ApplyError(
            "; ".join(str(found) for found in plan.disturbs),
            "the plan would end what runs there, and nothing was changed",
            "Stop it, or change gpu_layout so that this instance stays.",
            outcome="old",
        )
    done: list[str] = []
    for gpu_plan in plan.gpus:
        try:
            _run(session, gpu_plan, reset, done)
        except FleetError as error:
            _undo(session, plan, error, done, reset)
    after = session.observe()
    left = _remaining(after, [gpu.target for gpu in plan.gpus])
    if left.changes:
        raise ApplyError(
            "this host",
            "every step succeeded, yet NVML shows another layout than the one asked for: %s" % "; ".join(left.lines()),
            "Look for another tool that partitions these GPUs (mig-parted, a GPU operator).",
            outcome="unknown",
            steps_done=done,
        )
    return after


def _remaining(host: Host, targets: Sequence[Target]) -> Plan:
    return mig_plan.plan(host.gpus, targets)


def _run(session: Session, gpu_plan: GpuPlan, reset: Callable[[str, bool], None], done: list[str]) -> None:
    for step in gpu_plan.steps:
        _step(session, gpu_plan.gpu.uuid, step, reset)
        done.append("gpu %d: %s" % (gpu_plan.gpu.index, step))


def _step(session: Session, gpu: str, step: mig_steps.Step, reset: Callable[[str, bool], None]) -> None:
    if isinstance(step, mig_steps.SetMigMode):
        _set_mig_mode(session, gpu, step.enabled, reset)
    elif isinstance(step, mig_steps.SetComputeMode):
        session.set_compute_mode(gpu, step.mode)
    elif isinstance(step, mig_steps.DestroyComputeInstance):
        session.destroy_compute_instance(gpu, step.gpu_instance_id, step.compute_instance_id)
    elif isinstance(step, mig_steps.DestroyGpuInstance):
        session.destroy_gpu_instance(gpu, step.gpu_instance_id)
    elif isinstance(step, mig_steps.CreateGpuInstance):
        session.create_gpu_instance(gpu, step.profile_id, step.placement)
    elif isinstance(step, mig_steps.CreateComputeInstance):
        session.create_compute_instance(gpu, step.profile_id, step.gpu_instance_start, step.compute_slices, step.start)
    else:
        raise TypeError("not a step: %r" % (step,))


def _set_mig_mode(session: Session, gpu: str, enabled: bool, reset: Callable[[str, bool], None]) -> None:
    """Set the mode and see it active. The call succeeds even where the mode stays pending: the status tells."""
    before = session.mig_mode(gpu)[0]
    status = session.set_mig_mode(gpu, enabled)
    try:
        if status == IN_USE:
            raise NvmlError(
                "gpu %s" % gpu,
                "it is in use, so its MIG mode cannot change now",
                "Stop what uses it and run again.",
                gpu=gpu,
            )
        if status != SUCCESS or session.mig_mode(gpu)[0] != enabled:
            reset(gpu, session.simulated)
        session.forget(gpu)
        if session.mig_mode(gpu)[0] != enabled:
            raise NvmlError(
                "gpu %s" % gpu, "its MIG mode is still pending after a reset", "Reboot the host and run again.", gpu=gpu
            )
    except FleetError:
        # A mode left pending would take effect at the next reset, behind everybody's back.
        session.set_mig_mode(gpu, before)
        raise


def _undo(session: Session, plan: Plan, cause: FleetError, done: list[str], reset: Callable[[str, bool], None]) -> None:
    """Go back to what was observed before the run, by a plan made from what is there now; then raise ApplyError."""
    before = [mig_plan.target_of(gpu_plan.gpu) for gpu_plan in plan.gpus if gpu_plan.steps]
    try:
        back = mig_plan.plan(session.observe().gpus, before)
        for gpu_plan in back.gpus:
            _run(session, gpu_plan, reset, [])
        left = _remaining(session.observe(), before)
        if left.changes:
            raise NvmlError(
                "this host", "after going back NVML still shows another layout: %s" % "; ".join(left.lines())
            )
    except FleetError as error:
        raise ApplyError(
            cause.where,
            "%s; going back failed as well: %s" % (cause.problem, error),
            "Look at the host with nvidia-smi before anything else runs on it.",
            outcome="unknown",
            steps_done=done,
        ) from cause
    raise ApplyError(
        cause.where, "%s; the layout of before is back" % cause.problem, cause.cure, outcome="old", steps_done=done
    ) from cause
