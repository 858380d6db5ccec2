# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Apply a plan, verify the result, and roll back on failure.

After `apply`, the host has either the new or the old layout, and the caller learns which one.

The journal is written before the first step and removed after the layout was verified. If a run finds a journal, it
first completes the interrupted run (see `recovery`).
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Callable, Iterator, Mapping, Sequence

from .. import durable
from ..errors import ApplyError, BusyError, FleetError, NvmlError, PlanError, ResetRefusedError, UnansweredCallError
from ..frozen import frozen
from ..holders.model import UNKNOWN
from ..model import Gpu, Holder, Host, LostGpu, Process, lost_of
from ..plan.busy import can_be_ended, make_way
from ..plan.disturbance import Disturbance
from ..plan.gpu_plan import GpuPlan, Plan, Target
from ..plan.ownership import Ownership, Record
from ..plan.parts import GpuStep
from ..plan.services import Change, Clear, Look
from ..plan.transaction import Journal
from ..techniques.registry import DIVIDER, technique_of
from ..vendors.nvidia.nvml.bounded_session import BoundedSession
from ..vendors.nvidia.nvml.calls import IN_USE, lost_error
from ..vendors.nvidia.nvml.calls import UNKNOWN as UNKNOWN_CODE
from ..vendors.nvidia.nvml.reset import Reset, reset_gpu
from . import compute_mode, planner
from .host_change import HostChange

if TYPE_CHECKING:
    from .unnamed import AppliedRecord


@frozen
class Context:
    """The dependencies of a change: the NVML session, the records and the callbacks.

    `look` reads the host and the holders of its GPUs. It is called again for each GPU right before a step that could
    end a holder, because a job may have started after the plan was made.

    `clear` requires `look`. If `clear` is given, blocking holders are ended, one GPU at a time. Otherwise a blocking
    holder fails the run.

    `record`, if given, is updated with the final instances as soon as the journal is removed. `applied`, if given, is
    updated at the same moment with the state that was applied to each GPU.
    """

    session: BoundedSession
    journal: Journal
    record: Record | None = None
    look: Look | None = None
    clear: Clear | None = None
    reset: Reset = reset_gpu
    applied: AppliedRecord | None = None

    def observe(self) -> Host:
        """Return the host. If `look` is set, the host includes the holders."""
        return (self.look or self.session.observe)()


def apply(
    context: Context,
    plan: Plan,
    ownership: Ownership = planner.ALL_OURS,
    changes: Sequence[Change] = (),
    applied: Mapping[str, Any] | None = None,
) -> Host:
    """Apply `plan` and return the host as read afterwards.

    `ownership` is the ownership that the plan was made with.

    `applied` is the new content of `Context.applied`. If `applied` is None, the content does not change.

    `changes` are the changes of services. They stop services before the first step and start services after the last
    step. If one of them fails, everything is rolled back.

    Raises BusyError if the plan would end a holder. The error is raised before the first step, or after a rollback if
    the holder started later.
    Raises ApplyError if a step fails. The outcome is "old" after a rollback, or "unknown" if the rollback failed. If it
    failed, the journal is kept and the next run tries again.
    """
    if context.clear is None:
        plan.refuse_disturbance()
    # Change the modes of GPUs first. A refused reset then fails the run before any other change.
    changed = sorted((gpu for gpu in plan.gpus if gpu.steps), key=lambda gpu: not DIVIDER.mode_changes(gpu))
    before, after = [planner.target_of(gpu.gpu) for gpu in changed], [gpu.target for gpu in changed]
    services = HostChange(changes)
    records = None
    if context.applied is not None and applied is not None:
        records = {"old": context.applied.read().to_data(), "new": applied}
    context.journal.begin(before, after, services.record, records)
    done: list[str] = []
    try:
        services.stop(done)
        for gpu_plan in changed:
            if context.look is not None:
                _make_way(gpu_plan, context.look, context.clear)
            run_steps(context, gpu_plan, done)
        host = context.session.observe()
        for gpu_plan in changed:
            _require(host, gpu_plan.gpu)
        expect(host, after, ownership)
        services.start(host, done)
    except BaseException as error:
        _undo(context, before, after, error, done, services)
        raise
    with settled("new"):
        if context.record is not None:
            seen = {gpu.uuid: gpu for gpu in host.gpus}
            context.record.adopt((seen[gpu_plan.gpu.uuid], gpu_plan.left) for gpu_plan in changed)
        if records is not None and context.applied is not None:
            context.applied.write(records["new"])
        context.journal.end()
        services.forget()
    return host


@contextlib.contextmanager
def settled(outcome: str) -> Iterator[None]:
    """Raise ApplyError, which names the current layout, if the result is not recorded.

    Wrap the code that records the result of a change in this context manager.
    """
    try:
        yield
    except (FleetError, OSError) as error:
        where = error.where if isinstance(error, FleetError) else str(error.filename)
        problem = error.problem if isinstance(error, FleetError) else str(error)
        cure = error.cure if isinstance(error, FleetError) else durable.cure_of(error)
        raise ApplyError(
            where,
            "the %s layout is applied, but this could not be recorded: %s" % (outcome, problem),
            ("%s Then run again." % cure.replace(", and run again.", ".")).lstrip(),
            outcome=outcome,
        ) from error


def _make_way(gpu_plan: GpuPlan, look: Look, clear: Clear | None) -> None:
    """Read the holders again, and refuse or end those that the steps would disturb.

    Holders are ended if `clear` is given. Otherwise BusyError is raised.
    """
    if not any(step.ends for step in gpu_plan.steps):
        return

    def in_the_way() -> Sequence[Disturbance]:
        host = look(gpu_plan.gpu.uuid)
        # If a GPU cannot be read, its processes are unknown.
        _require(host, gpu_plan.gpu)
        now = next(gpu for gpu in host.gpus if gpu.uuid == gpu_plan.gpu.uuid)
        return DIVIDER.disturbed(now, gpu_plan.steps)

    make_way(in_the_way, clear)


def _require(host: Host, gpu: Gpu) -> None:
    """Raise NvmlError if the GPU no longer works."""
    sick = lost_of(host, gpu.uuid)
    if sick is not None:
        raise lost_error(gpu.short_label, [sick])
    if gpu.uuid not in {each.uuid for each in host.gpus}:
        raise NvmlError(gpu.short_label, "it is gone", "Check the kernel log.", gpu=gpu.uuid)


def run_steps(context: Context, gpu_plan: GpuPlan, done: list[str]) -> None:
    """Apply the steps of a GPU, and append each completed step to `done`."""
    gpu = gpu_plan.gpu
    for step in gpu_plan.steps:
        try:
            _step(context.session, gpu.uuid, step, context.reset)
        except NvmlError as error:
            # Steps know only the UUID of a GPU. Messages also need its index.
            if error.where == "gpu %s" % gpu.uuid:
                error.where = "gpu %d (%s)" % (gpu.index, gpu.uuid)
            raise
        done.append("gpu %d: %s" % (gpu_plan.gpu.index, step))


def expect(host: Host, targets: Sequence[Target], ownership: Ownership = planner.ALL_OURS) -> None:
    """Raise NvmlError if the current layout differs from the targets."""
    left = planner.plan(host.gpus, targets, ownership)
    if left.changes:
        raise NvmlError(
            "this host",
            "every step succeeded, yet NVML shows another layout: %s" % "; ".join(left.lines()),
            "Check for another tool that partitions these GPUs (mig-parted, a GPU operator).",
        )


def _step(session: BoundedSession, gpu: str, step: GpuStep, reset: Reset) -> None:
    if step.technique == compute_mode.KEY:
        compute_mode.apply(session, gpu, step)
    elif step.technique == DIVIDER.key:
        DIVIDER.apply(session, gpu, step, reset)
    else:
        technique_of(step).apply(gpu, step)


def _undo(
    context: Context,
    before: Sequence[Target],
    after: Sequence[Target],
    cause: BaseException,
    done: list[str],
    services: HostChange,
) -> None:
    """Roll back after the failure `cause`.

    Raises ApplyError or BusyError if `cause` is a FleetError or if the rollback fails. Returns after the rollback if
    `cause` is another exception.
    """
    known = cause if isinstance(cause, FleetError) else FleetError("this host", "interrupted by %r" % cause)
    if isinstance(known, UnansweredCallError):
        raise ApplyError(
            known.where,
            "%s, in the middle of a change" % known.problem,
            "%s The journal is kept, and the next run completes the change or rolls it back." % known.ADVICE,
            outcome="unknown",
            steps_done=done,
        ) from cause
    try:
        # The rollback removes only what this run created. An unknown holder does not stop the rollback half way. If
        # ending holders is permitted, a holder without a process does not stop it either.
        counts = can_be_ended if context.clear is not None else is_known
        services.clear_away()
        host = go_back(context, before, counts)
        services.bring_back(host)
    except FleetError as error:
        raise ApplyError(
            known.where,
            "%s; the rollback failed as well: %s" % (known.problem, error),
            "Run again: the journal is kept. If that fails too, check the host with nvidia-smi.",
            outcome="unknown",
            steps_done=done,
        ) from cause
    with settled("old"):
        if context.record is not None:
            context.record.renew(host.gpus)
        sick = end_journal(context.journal, host, before, after)
    if known is not cause:
        return
    problem = "%s; the previous layout was restored" % known.problem
    if sick:
        problem += " on the GPUs that work, but not on %s" % " and ".join(map(str, sick))
    if isinstance(known, BusyError):
        raise BusyError(known.disturbs, problem, known.cure, steps_done=done) from cause
    refused = isinstance(known, ResetRefusedError)
    cure = known.cure
    if refused:
        problem = "reboot needed: %s" % problem
        cure = "%s gpu_layout_reboot: true lets the run reboot the host for it." % cure
    raise ApplyError(known.where, problem, cure, outcome="old", steps_done=done, reboot_needed=refused) from cause


def is_known(holder: Holder | Process) -> bool:
    """Return whether the holder was identified."""
    return holder.kind != UNKNOWN


def go_back(
    context: Context, before: Sequence[Target], counts: Callable[[Holder | Process], bool] = lambda holder: True
) -> Host:
    """Restore the layout before the run: plan from the current layout and apply.

    Returns the host. A GPU that cannot be restored counts as lost and does not block the other GPUs. Raises BusyError
    if the plan would end a holder for which `counts` is true. Raises NvmlError or PlanError if a GPU that cannot be
    restored is in use, or if no working GPU remains.
    """
    host = context.observe()
    plans: list[GpuPlan] = []
    failed: dict[str, NvmlError | PlanError] = {}
    for target in working(before, host):
        try:
            plans += planner.plan(host.gpus, [target]).gpus
        except PlanError as error:
            failed[target.gpu_uuid] = error
    disturbs = [disturbance for disturbance in Plan(tuple(plans)).disturbs if any(map(counts, disturbance.who))]
    if disturbs:
        problem = "the previous layout cannot be restored without ending these workloads"
        raise BusyError(disturbs, problem, "Stop it and run again.")
    for gpu_plan in plans:
        try:
            run_steps(context, gpu_plan, [])
        except NvmlError as error:
            failed[gpu_plan.gpu.uuid] = error
    host = context.session.observe()
    for target in working(before, host):
        try:
            planner.plan(host.gpus, [target])
        except PlanError as error:
            failed.setdefault(target.gpu_uuid, error)
    if failed:
        _give_up(context.session, host, failed)
        host = context.session.observe()
    expect(host, working(before, host))
    return host


def _give_up(session: BoundedSession, host: Host, failed: Mapping[str, NvmlError | PlanError]) -> None:
    """Mark these GPUs as lost.

    Raises the failure instead if the GPU is in use or missing, or if no working GPU would remain.
    """
    seen = {gpu.uuid for gpu in host.gpus}
    for uuid, error in failed.items():
        if lost_of(host, uuid) is not None:
            continue
        if isinstance(error, PlanError):
            error = NvmlError(error.where, error.problem, error.cure, call="plan", code=UNKNOWN_CODE, gpu=uuid)
        if uuid not in seen or error.code in (None, IN_USE) or not seen - set(failed):
            raise failed[uuid]
        session.give_up(uuid, error)


def working(targets: Sequence[Target], host: Host) -> list[Target]:
    """Return the targets of GPUs that are not lost."""
    return [target for target in targets if lost_of(host, target.gpu_uuid) is None]


def end_journal(journal: Journal, host: Host, before: Sequence[Target], after: Sequence[Target]) -> tuple[LostGpu, ...]:
    """Remove the journal, but keep the targets of lost GPUs in it.

    A later run completes these targets when the GPUs work again. Returns the lost GPUs.
    """
    lost = {target.gpu_uuid: lost_of(host, target.gpu_uuid) for target in (*before, *after)}
    left = [[target for target in targets if lost[target.gpu_uuid]] for targets in (before, after)]
    if any(left):
        journal.begin(*left)
    else:
        journal.end()
    return tuple(dict.fromkeys(gpu for gpu in lost.values() if gpu is not None))
