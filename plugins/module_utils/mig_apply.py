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
from .errors import ApplyError, BusyError, FleetError, NvmlError, ResetRefusedError
from .holders_model import UNKNOWN
from .mig_steps import Disturbance, GpuPlan, Plan, Target
from .model import Gpu, Host
from .nvml import Session
from .nvml_calls import IN_USE, RESET_REQUIRED, SUCCESS
from .ownership import Ownership, Record
from .reset import reset_gpu
from .transaction import Journal

Reset = Callable[[str, bool], None]
Look = Callable[[], Host]
#: Ends those who are in the way; says whether there was anybody whom it could end.
Clear = Callable[[Sequence[Disturbance]], bool]

#: Steps that end what runs in the instance, or on the GPU.
ENDING_STEPS = (mig_steps.SetMigMode, mig_steps.DestroyComputeInstance, mig_steps.DestroyGpuInstance)

#: How often those in the way are ended before it is said that they come back.
_ROUNDS = 3


def apply(
    session: Session,
    plan: Plan,
    journal: Journal,
    reset: Reset = reset_gpu,
    ownership: Ownership = mig_plan.ALL_OURS,
    record: Record | None = None,
    look: Look | None = None,
    clear: Clear | None = None,
) -> Host:
    """Carry out `plan`, made under `ownership`, and return the host as it was observed afterwards.

    `look` observes the host with its holders; it is asked again right before the first step of each GPU that could end
    something, because a job may have begun since the plan was made. With `clear` (which needs `look`), whoever is in
    the way there is ended, GPU by GPU, instead of ending the run.

    Where there is a `record`, it knows the instances that stand at the end as soon as the journal is gone.

    Raises BusyError where the plan would end something that runs, before the first step or, where it began later, with
    the layout of before brought back. Raises ApplyError after a failed step, then with outcome "old" (the layout of
    before is back), or "unknown" where even that failed (the journal then stays, and the next run tries again).
    """
    if clear is None:
        refuse_disturbance(plan)
    # Those whose mode changes first: a reset that is refused is known before anything else was done.
    changed = sorted((gpu for gpu in plan.gpus if gpu.steps), key=lambda gpu: not mode_changes(gpu))
    before, after = [mig_plan.target_of(gpu.gpu) for gpu in changed], [gpu.target for gpu in changed]
    journal.begin(before, after)
    done: list[str] = []
    try:
        for gpu_plan in changed:
            if look is not None:
                _make_way(gpu_plan, look, ownership, clear)
            _run(session, gpu_plan, reset, done)
        host = session.observe()
        _expect(host, after, ownership)
    except BaseException as error:
        _undo(session, journal, before, error, done, reset, record, look)
        raise
    if record is not None:
        seen = {gpu.uuid: gpu for gpu in host.gpus}
        record.adopt((seen[gpu_plan.gpu.uuid], gpu_plan.left) for gpu_plan in changed)
    journal.end()
    return host


def refuse_disturbance(plan: Plan) -> None:
    """Raise BusyError, naming who, where the plan would end something that runs."""
    if plan.disturbs:
        raise BusyError(
            plan.disturbs,
            "the plan would end what runs there, and nothing was changed",
            "Stop it, or change gpu_layout so that this instance stays; gpu_layout_on_busy can wait for it, drain or end it.",
        )


def mode_changes(gpu_plan: GpuPlan) -> bool:
    """Whether the plan turns this GPU's MIG mode on or off."""
    return any(isinstance(step, mig_steps.SetMigMode) for step in gpu_plan.steps)


def leave_pending(session: Session, plan: Plan) -> None:
    """Set the MIG modes that the plan changes and leave them pending: a reboot of the host, and no less, is to follow."""
    for gpu_plan in filter(mode_changes, plan.gpus):
        session.set_mig_mode(gpu_plan.gpu.uuid, gpu_plan.target.mig_enabled)


def _make_way(gpu_plan: GpuPlan, look: Look, ownership: Ownership, clear: Clear | None) -> None:
    """Look again who is in the way on this GPU, and refuse, or end them where there is leave to."""
    if not any(isinstance(step, ENDING_STEPS) for step in gpu_plan.steps):
        return
    for _round in range(_ROUNDS):
        disturbs = mig_plan.plan(look().gpus, [gpu_plan.target], ownership).disturbs
        if not disturbs:
            return
        if clear is None:
            raise BusyError(disturbs, "it came into use while the run went on", "Run again.")
        if not clear(disturbs):
            return
    raise BusyError(disturbs, "it was ended and came back", "Stop the service that starts it (gpu_drain_services).")


def recover(
    session: Session,
    journal: Journal,
    reset: Reset = reset_gpu,
    record: Record | None = None,
    look: Look | None = None,
    clear: Clear | None = None,
) -> str | None:
    """Finish what a run that was cut off left: None where there is nothing, else which layout stands now, old or new.

    The new layout stands where the run had got as far as that. Otherwise the old one is brought back; where that would
    end something that runs (a job that began since), the rest of the new one is made if that ends nothing. Where both
    would, `clear` ends it, or without one BusyError is raised. Raises ApplyError where it fails. The journal then stays
    as it was.
    """
    entry = journal.read()
    if entry is None:
        return None
    look = look or session.observe
    gpus = look().gpus
    there = {gpu.uuid for gpu in gpus}
    before, after = ([t for t in targets if t.gpu_uuid in there] for targets in (entry.before, entry.after))
    outcome = "new"
    reached = _reached(gpus, after)
    if reached is None:
        try:
            host, reached = _back_or_on(session, before, after, reset, look, clear)
        except FleetError as error:
            problem = "%s, and the layout before it cannot be brought back: %s" % (entry.cut_off(), error.problem)
            cure = "%s Or remove %s to go on from what stands now." % (error.cure, journal.path)
            if isinstance(error, BusyError):
                raise BusyError(error.disturbs, problem, cure) from error
            raise ApplyError(error.where, problem, cure) from error
        if reached is None:
            outcome = "old"
            if record is not None:
                record.renew(host.gpus)
    if reached is not None and record is not None:
        record.adopt((gpu.gpu, [i for i in gpu.gpu.mig.instances if i not in gpu.kept]) for gpu in reached.gpus)
    journal.end()
    return outcome


def _back_or_on(
    session: Session,
    before: Sequence[Target],
    after: Sequence[Target],
    reset: Reset,
    look: Look,
    clear: Clear | None,
) -> tuple[Host, Plan | None]:
    """Back to the old layout, or else on to the new one: the host, and where it was on, the plan that has nothing to do."""
    try:
        return _go_back(session, before, reset, look), None
    except BusyError as busy:
        try:
            on = mig_plan.plan(look().gpus, after)
        except FleetError:
            on = None
        if on is None or on.disturbs:
            if clear is None or not clear(busy.disturbs):
                raise
            return _go_back(session, before, reset, look), None
    for gpu_plan in on.gpus:
        _run(session, gpu_plan, reset, [])
    host = session.observe()
    _expect(host, after)
    return host, _reached(host.gpus, after)


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
            raise ResetRefusedError(where, problem, "Look at the kernel log.", gpu=gpu)
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
    look: Look | None,
) -> None:
    """Go back after a failed step. Raises ApplyError for a FleetError; returns for any other exception."""
    known = cause if isinstance(cause, FleetError) else FleetError("this host", "interrupted by %r" % cause)
    try:
        host = _go_back(session, before, reset, look or session.observe, at_once=True)
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
    if known is not cause:
        return
    problem = "%s; the layout of before is back" % known.problem
    if isinstance(known, BusyError):
        raise BusyError(known.disturbs, problem, known.cure, steps_done=done) from cause
    refused = isinstance(known, ResetRefusedError)
    cure = known.cure
    if refused:
        problem = "reboot needed: %s" % problem
        cure = "%s gpu_layout_reboot: true lets the run reboot the host for it." % cure
    raise ApplyError(known.where, problem, cure, outcome="old", steps_done=done, reboot_needed=refused) from cause


def _go_back(session: Session, before: Sequence[Target], reset: Reset, look: Look, at_once: bool = False) -> Host:
    """Back to the layout of before, by a plan made from what is there now. Raises BusyError where that ends something.

    `at_once`: what it takes away was made by this very run. Then what cannot be determined is no reason to leave it half
    way; only somebody who was seen there is.
    """
    back = mig_plan.plan(look().gpus, before)
    disturbs = [d for d in back.disturbs if not at_once or any(holder.kind != UNKNOWN for holder in d.who)]
    if disturbs:
        problem = "the layout of before cannot be brought back without ending what runs there"
        raise BusyError(disturbs, problem, "Stop it and run again.")
    for gpu_plan in back.gpus:
        _run(session, gpu_plan, reset, [])
    host = session.observe()
    _expect(host, before)
    return host
