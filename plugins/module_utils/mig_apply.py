# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Carry a plan out and look again: a host ends with the new layout or the old one, and the caller learns which.

The journal is written before the first step and removed once the layout was seen to be whole. A run that finds a
journal finishes what the run before it could not: see `recover`.
"""

from __future__ import annotations

import contextlib
from typing import Callable, Sequence

from . import mig_plan, mig_steps
from .errors import ApplyError, FleetError, NvmlError
from .mig_steps import GpuPlan, Plan, Target
from .model import Gpu, Host
from .nvml import Session
from .nvml_calls import IN_USE, RESET_REQUIRED, SUCCESS
from .ownership import Ownership, Record
from .reset import reset_gpu
from .transaction import Journal

Reset = Callable[[str, bool], None]

#: Steps that end what runs in the instance, or on the GPU.
ENDING_STEPS = (mig_steps.SetMigMode, mig_steps.DestroyComputeInstance, mig_steps.DestroyGpuInstance)


def apply(
    session: Session,
    plan: Plan,
    journal: Journal,
    reset: Reset = reset_gpu,
    ownership: Ownership = mig_plan.ALL_OURS,
    record: Record | None = None,
    look: Callable[[], Host] | None = None,
) -> Host:
    """Carry out `plan`, made under `ownership`, and return the host as it was observed afterwards.

    `look` observes the host with its holders; it is asked again right before the first step of each GPU that could end
    something, because a job may have begun since the plan was made.

    Where there is a `record`, it knows the instances that stand at the end as soon as the journal is gone.

    Raises ApplyError: before the first step where the plan would end something that runs; after a failed step, then
    with outcome "old" (the layout of before is back), or "unknown" where even that failed (the journal then stays, and
    the next run tries again).
    """
    refuse_disturbance(plan)
    changed = [gpu for gpu in plan.gpus if gpu.steps]
    before, after = [mig_plan.target_of(gpu.gpu) for gpu in changed], [gpu.target for gpu in changed]
    journal.begin(before, after)
    done: list[str] = []
    try:
        for gpu_plan in changed:
            if look is not None:
                _refuse_newcomers(gpu_plan, look, ownership)
            _run(session, gpu_plan, reset, done)
        host = session.observe()
        _expect(host, after, ownership)
    except BaseException as error:
        _undo(session, journal, before, error, done, reset, record)
        raise
    if record is not None:
        seen = {gpu.uuid: gpu for gpu in host.gpus}
        record.adopt((seen[gpu_plan.gpu.uuid], gpu_plan.left) for gpu_plan in changed)
    journal.end()
    return host


def refuse_disturbance(plan: Plan) -> None:
    """Raise ApplyError, naming who, where the plan would end something that runs."""
    if plan.disturbs:
        raise ApplyError(
            "; ".join(str(found) for found in plan.disturbs),
            "the plan would end what runs there, and nothing was changed",
            "Stop it, or change gpu_layout so that this instance stays.",
            outcome="old",
        )


def _refuse_newcomers(gpu_plan: GpuPlan, look: Callable[[], Host], ownership: Ownership) -> None:
    if not any(isinstance(step, ENDING_STEPS) for step in gpu_plan.steps):
        return
    now = mig_plan.plan(look().gpus, [gpu_plan.target], ownership)
    if now.disturbs:
        where = "; ".join(str(found) for found in now.disturbs)
        raise NvmlError(where, "it came into use while the run went on", "Run again.")


def recover(session: Session, journal: Journal, reset: Reset = reset_gpu, record: Record | None = None) -> str | None:
    """Finish what a run that was cut off left: None where there is nothing, else which layout stands now, old or new.

    The new layout stands where the run had got as far as that. Otherwise the old one is brought back. Raises ApplyError
    where that would end something that runs, or fails.
    """
    entry = journal.read()
    if entry is None:
        return None
    gpus = session.observe().gpus
    there = {gpu.uuid for gpu in gpus}
    before, after = ([t for t in targets if t.gpu_uuid in there] for targets in (entry.before, entry.after))
    outcome = "new"
    reached = _reached(gpus, after)
    if reached is None:
        try:
            host = _go_back(session, before, reset)
        except FleetError as error:
            raise ApplyError(
                error.where,
                "a run was cut off half way, and the layout before it cannot be brought back: %s" % error.problem,
                "%s Or remove %s to go on from what stands now." % (error.cure, journal.path),
            ) from error
        outcome = "old"
        if record is not None:
            record.renew(host.gpus)
    elif record is not None:
        record.adopt((gpu.gpu, [i for i in gpu.gpu.mig.instances if i not in gpu.kept]) for gpu in reached.gpus)
    journal.end()
    return outcome


def _reached(gpus: Sequence[Gpu], targets: Sequence[Target]) -> Plan | None:
    """The plan to these targets if it has nothing left to do."""
    try:
        plan = mig_plan.plan(gpus, targets)
    except FleetError:
        # What was possible when the run began no longer is: another driver, another card.
        return None
    return None if plan.changes else plan


def _run(session: Session, gpu_plan: GpuPlan, reset: Reset, done: list[str]) -> None:
    for step in gpu_plan.steps:
        _step(session, gpu_plan.gpu.uuid, step, reset)
        done.append("gpu %d: %s" % (gpu_plan.gpu.index, step))


def _expect(host: Host, targets: Sequence[Target], ownership: Ownership = mig_plan.ALL_OURS) -> None:
    left = mig_plan.plan(host.gpus, targets, ownership)
    if left.changes:
        raise NvmlError(
            "this host",
            "every step succeeded, yet NVML shows another layout: %s" % "; ".join(left.lines()),
            "Look for another tool that partitions these GPUs (mig-parted, a GPU operator).",
        )


def _step(session: Session, gpu: str, step: mig_steps.Step, reset: Reset) -> None:
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


def _set_mig_mode(session: Session, gpu: str, enabled: bool, reset: Reset) -> None:
    """Set the mode and see it active. The call succeeds even where the mode stays pending: the status tells."""
    before = session.mig_mode(gpu)[0]
    status = session.set_mig_mode(gpu, enabled)
    where = "gpu %s" % gpu
    try:
        if status == IN_USE:
            problem = "it is in use, so its MIG mode cannot change now"
            cure = "Stop what uses it and run again. NVML does not list nvidia-persistenced, DCGM and nvidia_drm: see fuser."
            raise NvmlError(where, problem, cure, gpu=gpu)
        if status not in (SUCCESS, RESET_REQUIRED):
            raise NvmlError(where, "its MIG mode did not change (activation status %d)" % status, gpu=gpu)
        if session.mig_mode(gpu)[0] != enabled:
            with session.suspended():
                reset(gpu, session.simulated)
        if session.mig_mode(gpu)[0] != enabled:
            problem = "its MIG mode is still pending after a reset"
            raise NvmlError(where, problem, "Reboot the host and run again.", gpu=gpu)
    except FleetError:
        # A mode left pending would take effect at the next reset, behind everybody's back.
        with contextlib.suppress(FleetError):
            session.set_mig_mode(gpu, before)
        raise


def _undo(
    session: Session,
    journal: Journal,
    before: Sequence[Target],
    cause: BaseException,
    done: list[str],
    reset: Reset,
    record: Record | None,
) -> None:
    """Go back after a failed step. Raises ApplyError for a FleetError; returns for any other exception."""
    known = cause if isinstance(cause, FleetError) else FleetError("this host", "interrupted by %r" % cause)
    try:
        host = _go_back(session, before, reset)
    except FleetError as error:
        raise ApplyError(
            known.where,
            "%s; going back failed as well: %s" % (known.problem, error),
            "Run again: the journal is kept. If that fails too, look at the host with nvidia-smi.",
            outcome="unknown",
            steps_done=done,
        ) from cause
    if record is not None:
        record.renew(host.gpus)
    journal.end()
    if known is cause:
        problem = "%s; the layout of before is back" % known.problem
        raise ApplyError(known.where, problem, known.cure, outcome="old", steps_done=done) from cause


def _go_back(session: Session, before: Sequence[Target], reset: Reset) -> Host:
    """Back to the layout of before, by a plan made from what is there now."""
    back: Plan = mig_plan.plan(session.observe().gpus, before)
    if back.disturbs:
        raise ApplyError(
            "; ".join(str(found) for found in back.disturbs),
            "the layout of before cannot be brought back without ending what runs there",
            "Stop it and run again.",
        )
    for gpu_plan in back.gpus:
        _run(session, gpu_plan, reset, [])
    host = session.observe()
    _expect(host, before)
    return host
