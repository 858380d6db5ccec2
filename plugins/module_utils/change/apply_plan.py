# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Apply a plan, verify the result, and roll back on failure.

After `apply`, the host has either the new or the old layout, and the return value or the error says which one.

The journal is written before the first step and removed after the layout was verified. A run that finds a journal first
completes the interrupted run (see `recovery`).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from typing import TYPE_CHECKING, Any, Callable, Iterator, Mapping, Sequence

from .. import durable
from ..errors import ApplyError, BusyError, DeviceError, FleetError, PlanError, ResetRefusedError, UnansweredCallError
from ..frozen import frozen
from ..holders.model import UNKNOWN
from ..model import Device, Holder, Host, LostGpu, Process, lost_of
from ..plan.busy import can_be_ended, make_way
from ..plan.disturbance import Disturbance
from ..plan.gpu_plan import GpuPlan, Plan, Target
from ..plan.ownership import Ownership, Record
from ..plan.parts import RELOAD, RESET, GpuStep
from ..plan.services import Change, Clear, Look
from ..vendors.registry import divider_of, vendor_of, vendor_of_host
from . import planner
from .host_change import HostChange
from .journal import Journal

if TYPE_CHECKING:
    from ..plan.leased import LeasedRecord
    from ..vendors.protocol import Session
    from .unnamed import AppliedRecord


@frozen
class Context:
    """The session, records and callbacks that a change needs.

    `look` reads the host and the holders of its GPUs. It is called again for each GPU right before a step that could
    end a holder, because a job may have started after the plan was made.

    `clear` ends blocking holders, one GPU at a time, and requires `look`. Without `clear`, a blocking holder fails the
    run.

    `record`, if given, receives the final instances as soon as the journal is removed. `applied`, if given, receives
    the applied state of each GPU at the same moment. `leased`, if given, has the instances of leases. A rollback that
    recreates these instances updates it.
    """

    session: Session
    journal: Journal
    record: Record | None = None
    look: Look | None = None
    clear: Clear | None = None
    applied: AppliedRecord | None = None
    leased: LeasedRecord | None = None

    def observe(self) -> Host:
        """Return the host, with the holders of its GPUs if `look` is set."""
        return (self.look or self.session.observe)()


def apply(
    context: Context,
    plan: Plan,
    ownership: Ownership = planner.ALL_OURS,
    changes: Sequence[Change] = (),
    applied: Mapping[str, Any] | None = None,
) -> Host:
    """Apply `plan` and return the host as read after the change.

    `ownership` is the ownership for which the plan was made. `applied` is the new content of `Context.applied`. None
    leaves the content as it is.

    `changes` are the changes of services. They stop services before the first step and start services after the last
    step. If a change of a service fails, everything is rolled back.

    Raises BusyError if the plan would end a holder. If the holder started during the run, the run is rolled back first.
    Raises ApplyError if a step fails. The outcome is "old" after a rollback, or "unknown" if the rollback failed. After
    a failed rollback, the journal is kept and the next run tries again.
    """
    if context.clear is None:
        plan.refuse_disturbance()
    # Change the GPUs' modes first. If the driver refuses a reset, the run then fails before any other change.
    changed = sorted((gpu for gpu in plan.gpus if gpu.steps), key=lambda gpu: not gpu.needs(RESET))
    before, after = [planner.target_of(gpu.gpu) for gpu in changed], [gpu.target for gpu in changed]
    services = HostChange(changes)
    records = None
    if context.applied is not None and applied is not None:
        records = {"old": context.applied.read().to_data(), "new": applied}
    context.journal.begin(before, after, services.record, records)
    done: list[str] = []
    try:
        services.stop(done)
        run_plans(context, changed, done, context.look)
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
    """Raise ApplyError with the current layout if the code in the block fails.

    Use it around code that records the result of a change.
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
    """Read the holders again, and end or refuse those that the steps would disturb.

    `clear` ends them. Without `clear`, BusyError is raised.
    """
    if not any(step.ends for step in gpu_plan.steps):
        return

    def in_the_way() -> Sequence[Disturbance]:
        host = look(gpu_plan.gpu.uuid)
        # If a GPU cannot be read, its processes are unknown.
        _require(host, gpu_plan.gpu)
        now = next(gpu for gpu in host.gpus if gpu.uuid == gpu_plan.gpu.uuid)
        return divider_of(now).disturbed(now, gpu_plan.steps)

    make_way(in_the_way, clear)


def _require(host: Host, gpu: Device) -> None:
    """Raise DeviceError if the GPU no longer works."""
    sick = lost_of(host, gpu.uuid)
    if sick is not None:
        raise vendor_of(gpu).lost_error(gpu.short_label, [sick])
    if gpu.uuid not in {each.uuid for each in host.gpus}:
        raise vendor_of(gpu).failure(gpu.short_label, "it is gone", "Check the kernel log.", gpu=gpu.uuid)


def run_plans(
    context: Context,
    plans: Sequence[GpuPlan],
    done: list[str],
    look: Look | None = None,
    failed: dict[str, DeviceError | PlanError] | None = None,
) -> None:
    """Apply the steps of these GPUs, and append each completed step to `done`.

    If steps need a reload of the driver, it is reloaded once for all GPUs. Their remaining steps follow. If `look` is
    given, the holders are read before each change, and ended or refused. If `failed` is given, a GPU that fails is
    added to it, and the other GPUs change. Otherwise the error is raised.
    """
    for gpu_plan in plans:
        if look is not None:
            _make_way(gpu_plan, look, context.clear)
        _run_steps(context, gpu_plan, _around_reload(gpu_plan)[0], done, failed)
    reloads = {each.gpu.divider: divider_of(each.gpu) for each in plans if each.needs(RELOAD)}
    for divider in reloads.values():
        if look is not None:
            make_way(functools.partial(_of_reload, look), context.clear)
        divider.reload(context.session)
        done.append("reload the driver")
    for gpu_plan in plans if reloads else ():
        _run_steps(context, gpu_plan, _around_reload(gpu_plan)[1], done, failed)


def _around_reload(gpu_plan: GpuPlan) -> tuple[Sequence[GpuStep], Sequence[GpuStep]]:
    """Split the steps after the last step that needs a reload of the driver."""
    steps = gpu_plan.steps
    count = max((n for n, step in enumerate(steps, 1) if step.needs == RELOAD), default=len(steps))
    return steps[:count], steps[count:]


def _of_reload(look: Look) -> Sequence[Disturbance]:
    return planner.reload_disturbs(look().gpus)


def _run_steps(
    context: Context,
    gpu_plan: GpuPlan,
    steps: Sequence[GpuStep],
    done: list[str],
    failed: dict[str, DeviceError | PlanError] | None,
) -> None:
    """Apply these steps of a GPU. `run_plans` describes the other arguments."""
    gpu = gpu_plan.gpu
    if failed is not None and gpu.uuid in failed:
        return
    try:
        _apply(context.session, gpu, steps, lambda step: done.append("gpu %d: %s" % (gpu.index, step)))
    except DeviceError as error:
        # A step knows only the GPU's UUID. Messages also need the index.
        if error.where == "gpu %s" % gpu.uuid:
            error.where = "gpu %d (%s)" % (gpu.index, gpu.uuid)
        if failed is None:
            raise
        failed[gpu.uuid] = error


def expect(host: Host, targets: Sequence[Target], ownership: Ownership = planner.ALL_OURS) -> None:
    """Raise DeviceError if the current layout differs from the targets."""
    left = planner.plan(host.gpus, targets, ownership)
    if left.changes:
        vendor = vendor_of_host()
        raise vendor.failure(
            "this host",
            "every step succeeded, yet %s shows another layout: %s" % (vendor.reader, "; ".join(left.lines())),
            "Check for another tool that partitions these GPUs (%s)." % vendor.other_tools,
        )


def _apply(session: Session, gpu: Device, steps: Sequence[GpuStep], done: Callable[[GpuStep], None]) -> None:
    divider = divider_of(gpu)
    settings = {each.key: each for each in planner.settings_of(gpu)}
    for key, group in itertools.groupby(steps, lambda step: step.technique):
        if key == divider.key:
            divider.apply(session, gpu.uuid, list(group), done)
            continue
        for step in group:
            if key not in settings:
                raise TypeError("not a step: %r" % (step,))
            settings[key].apply(session, gpu.uuid, step)
            done(step)


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
        # The rollback removes only what this run created, so unidentified holders must not stop it half way. If ending
        # holders is permitted, holders without a process must not stop it either.
        counts = can_be_ended if context.clear is not None else is_known
        services.clear_away()
        host = go_back(context, before, counts)
        services.bring_back(host)
    except FleetError as error:
        raise ApplyError(
            known.where,
            "%s; the rollback failed as well: %s" % (known.problem, error),
            "Run again: the journal is kept. If that fails too, check the host with %s." % vendor_of_host().command,
            outcome="unknown",
            steps_done=done,
        ) from cause
    with settled("old"):
        if context.record is not None:
            context.record.renew(host.gpus)
        if context.leased is not None:
            context.leased.renew(host.gpus)
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
    if the plan would end a holder for which `counts` returns True. Raises DeviceError or PlanError if a GPU that cannot
    be restored is in use, or if no working GPU remains.
    """
    host = context.observe()
    plans: list[GpuPlan] = []
    failed: dict[str, DeviceError | PlanError] = {}
    for target in working(before, host):
        try:
            plans += planner.plan(host.gpus, [target]).gpus
        except PlanError as error:
            failed[target.gpu_uuid] = error
    of_reload = planner.reload_disturbs(host.gpus) if any(each.needs(RELOAD) for each in plans) else ()
    plan = Plan(tuple(plans), reload_disturbs=of_reload)
    disturbs = [disturbance for disturbance in plan.disturbs if any(map(counts, disturbance.who))]
    if disturbs:
        problem = "the previous layout cannot be restored without ending these workloads"
        raise BusyError(disturbs, problem, "Stop it and run again.")
    run_plans(context, plans, [], failed=failed)
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


def _give_up(session: Session, host: Host, failed: Mapping[str, DeviceError | PlanError]) -> None:
    """Mark these GPUs as lost, or raise the GPU's failure.

    The failure is raised if the GPU is in use or missing, or if no working GPU would remain.
    """
    seen = {gpu.uuid for gpu in host.gpus}
    for uuid, error in failed.items():
        if lost_of(host, uuid) is not None:
            continue
        if isinstance(error, PlanError):
            kind = vendor_of_host().failure
            error = kind(error.where, error.problem, error.cure, call="plan", code=kind.UNKNOWN, gpu=uuid)
        if uuid not in seen or error.code in (None, error.IN_USE) or not seen - set(failed):
            raise failed[uuid]
        session.give_up(uuid, error)


def working(targets: Sequence[Target], host: Host) -> list[Target]:
    """Return the targets of GPUs that are not lost."""
    return [target for target in targets if lost_of(host, target.gpu_uuid) is None]


def end_journal(journal: Journal, host: Host, before: Sequence[Target], after: Sequence[Target]) -> tuple[LostGpu, ...]:
    """Remove the journal, but keep the targets of lost GPUs in it.

    Returns the lost GPUs. When they work again, a later run completes their targets.
    """
    lost = {target.gpu_uuid: lost_of(host, target.gpu_uuid) for target in (*before, *after)}
    left = [[target for target in targets if lost[target.gpu_uuid]] for targets in (before, after)]
    if any(left):
        journal.begin(*left)
    else:
        journal.end()
    return tuple(dict.fromkeys(gpu for gpu in lost.values() if gpu is not None))
