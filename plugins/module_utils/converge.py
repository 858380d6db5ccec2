# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One run over a host, whoever asks for it: clear up after a run that was cut off, observe, plan, apply, record.

Who is in the way is somebody else's question: `busy.OnBusy` has the answer.
"""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass
from typing import Any, Mapping, Sequence

from . import mig_apply, mig_plan, plan_file
from .busy import FAIL, FORCE, REFUSE, OnBusy, end_holders, patiently
from .errors import ApplyError, BusyError
from .follow import Owing, follow, foretell
from .holders import find_holders
from .holders_mark import mark
from .layout_types import Layout
from .mig_steps import Disturbance, Plan
from .model import Host
from .nvml import Session
from .ownership import Ownership, Record
from .selector import targets
from .transaction import Journal, locked


@dataclass(frozen=True)
class Run:
    """What one run planned, what it saw last, and which layout stood after it had cleared up (old, new, or None).

    `ended` names the processes that it ended, `followed` what else was done because devices changed. With
    `reboot_required` the plan is not carried out: MIG modes that it changes wait for a reboot of the host.
    """

    plan: Plan
    host: Host
    recovered: str | None = None
    ended: tuple[str, ...] = ()
    reboot_required: bool = False
    followed: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        return self.plan.changes or self.recovered == "old" or bool(self.followed)


def foresee(
    layout: Layout,
    directory: str,
    unlisted: str,
    saved: Mapping[str, Any] | None = None,
    on_busy: str = FAIL,
    services: Sequence[str] = (),
) -> Run:
    """What a run would do. Changes nothing, and needs no lock. Raises as `converge` does, as far as it can be known."""
    with Session() as session:
        host = _observe(session)
        # Where a run was cut off, the next one clears up before it asks whose instances these are.
        cut_off = Journal(directory).read() is not None
        ownership = mig_plan.ALL_OURS if cut_off else Ownership(unlisted, Record(directory).read())
        plan = _plan(layout, host, ownership, saved)
        if on_busy == FAIL:
            mig_apply.refuse_disturbance(plan)
        owed = Owing(directory).due()
        follows = (plan.changes_devices or owed) and not session.private
        return Run(plan, host, followed=foretell(services, again=owed) if follows else ())


def converge(
    layout: Layout,
    directory: str,
    unlisted: str,
    lock_timeout_seconds: float,
    saved: Mapping[str, Any] | None = None,
    on_busy: OnBusy = REFUSE,
    allow_reboot: bool = False,
    services: Sequence[str] = (),
) -> Run:
    """Make the host's GPUs what the layout says, by the plan that was `saved` for it where there is one.

    Where devices came or went, CDI specifications are made anew and `services` restarted (docs/after-a-change.md). With
    `allow_reboot`, where the reset of a GPU is refused, the caller is going to reboot the host: see
    `Run.reboot_required`.

    Raises DriverAbsentError, SelectorError, PlanError before anything has changed; BusyError and ApplyError with its
    outcome after; FollowError where the layout stands and the rest could not be done.
    """
    # What was learned of the host outlives an attempt: one that waits does not try a refused reset over and over.
    learned = _Learned()
    owing = Owing(directory)
    owed = owing.due()

    def attempt() -> Run:
        with contextlib.ExitStack() as held:
            held.enter_context(locked(directory, lock_timeout_seconds))
            session = held.enter_context(Session())
            run = _attempt(session, layout, directory, unlisted, saved, on_busy, allow_reboot, learned)
            return run if run.reboot_required else _follow(session, run, owing, owed, services)

    return patiently(attempt, on_busy)


class _Learned:
    def __init__(self) -> None:
        self.recovered: str | None = None
        self.ended: list[str] = []
        self.reset_refused = False


def _attempt(
    session: Session,
    layout: Layout,
    directory: str,
    unlisted: str,
    saved: Mapping[str, Any] | None,
    on_busy: OnBusy,
    allow_reboot: bool,
    learned: _Learned,
) -> Run:
    def look() -> Host:
        return _observe(session)

    def clear(disturbs: Sequence[Disturbance]) -> bool:
        ended = end_holders(disturbs, on_busy.grace_seconds)
        learned.ended += ended
        return bool(ended)

    force = clear if on_busy.policy == FORCE else None
    journal, record = Journal(directory), Record(directory)
    recovered = mig_apply.recover(session, journal, record=record, look=look, clear=force)
    learned.recovered = recovered or learned.recovered
    host = look()
    ownership = Ownership(unlisted, record.read())
    plan = _plan(layout, host, ownership, saved)
    if plan.changes:
        if force is None:
            mig_apply.refuse_disturbance(plan)
        if plan.changes_devices:
            Owing(directory).begin()
        try:
            if not learned.reset_refused:
                host = mig_apply.apply(
                    session, plan, journal, ownership=ownership, record=record, look=look, clear=force
                )
        except ApplyError as error:
            if not (allow_reboot and error.reboot_needed):
                raise
            learned.reset_refused = True
        if learned.reset_refused:
            _ready_for_reboot(look(), on_busy)
            mig_apply.leave_pending(session, plan)
            return Run(plan, look(), learned.recovered, tuple(learned.ended), True)
    # What stood there already and is named by the layout is adopted too.
    seen = {gpu.uuid: gpu for gpu in host.gpus}
    record.adopt((seen[gpu.gpu.uuid], gpu.left) for gpu in plan.gpus)
    return Run(plan, host, learned.recovered, tuple(learned.ended))


def _follow(session: Session, run: Run, owing: Owing, owed: bool, services: Sequence[str]) -> Run:
    """Do what follows a change of devices of this run, or `owed` by one that was cut off or could not do it."""
    if not owing.due():
        return run
    followed = () if session.private else follow(services, again=owed)
    owing.end()
    return dataclasses.replace(run, followed=followed)


def _ready_for_reboot(host: Host, on_busy: OnBusy) -> None:
    """A reboot ends what runs on any GPU of the host, whether the layout names it or not."""
    held = [(gpu, [h for h in gpu.held_by if not h.watches]) for gpu in host.gpus]
    disturbs = [Disturbance("gpu %d (the host would reboot)" % gpu.index, tuple(who)) for gpu, who in held if who]
    if disturbs and on_busy.policy != FORCE:
        raise BusyError(disturbs, "a reset was refused, and the reboot that is needed would end what runs there")


def _observe(session: Session) -> Host:
    """The host, with everybody who holds one of its GPUs or instances."""
    host = session.observe()
    return mark(host, find_holders(host))


def _plan(layout: Layout, host: Host, ownership: Ownership, saved: Mapping[str, Any] | None) -> Plan:
    wanted = targets(layout, host.gpus)
    if saved is None:
        return mig_plan.plan(host.gpus, wanted, ownership)
    return plan_file.restore(saved, host, wanted, ownership)
