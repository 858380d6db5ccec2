# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run on a host: recover, read the host, plan, apply and record.

`busy.OnBusy` decides how to handle blocking processes.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any, Mapping, Sequence

from ..errors import ApplyError, BusyError, DeviceError, FollowError, PlanError
from ..frozen import frozen
from ..layout.types import Layout
from ..model import Host, parts_of
from ..plan.busy import FAIL, FORCE, REFUSE, WAIT, OnBusy, wait_until_free
from ..plan.disturbance import Disturbance
from ..plan.gpu_plan import Plan, instance_text
from ..plan.leased import LEASE, LeasedRecord
from ..plan.ownership import KEEP, Owned, Ownership, Record, owned_instance
from ..plan.parts import RESET
from ..plan.services import Change, Clear, Look, Pids, Service, merged
from ..plan.transaction import locked
from ..plan.whole_host import ended_workloads
from ..techniques.registry import SERVING, SETTINGS, observers_for
from ..vendors.registry import divider_of, vendor_of_host
from . import lost_gpus
from .journal import Journal
from .lost_gpus import Answering, answering, newly_lost
from .pending import PendingFollowUp, PendingReboot, WaitingRun
from .prepare import ALL_PARTS, GPUS, PlanRequest, look, make_plan, observe, removal_of, services_for, staying

if TYPE_CHECKING:
    from ..vendors.protocol import Session
    from .unnamed import Applied, AppliedRecord, Decision, Unmanaged


@frozen
class Request:
    """The options of a run.

    `parts` are the parts of the layout to apply. If `saved` is given, this saved plan is applied instead of a new plan.
    `directory` is the host's state directory. `unlisted` is one of ownership.POLICIES, `lost` one of
    lost_gpus.POLICIES, and `unnamed` one of ownership.UNNAMED_POLICIES. Only a run with all parts uses `unnamed`.
    `services` are restarted if devices change (docs/after-a-change.md).
    """

    layout: Layout
    directory: str
    unlisted: str
    saved: Mapping[str, Any] | None = None
    services: Sequence[str] = ()
    parts: Sequence[str] = ALL_PARTS
    lost: str = lost_gpus.FAIL
    unnamed: str = KEEP

    @property
    def whole(self) -> bool:
        """Return whether the run applies all parts of the layout."""
        return set(ALL_PARTS).issubset(self.parts)


@frozen
class Run:
    """The result of a run: the plan, the host as last read, and the actions taken.

    `recovered` is the layout ("old" or "new") after an interrupted run was completed. It is None if no run was
    interrupted. `ended` names the ended processes, and `followed` the follow-up steps for changed devices. If
    `reboot_required` is true, the plan was not applied, and its MIG modes are pending until the host reboots. `missing`
    names software that must be installed before a predicted plan can be applied. `warnings` has a sentence for each
    lost GPU, and `reboots` one for each GPU whose MIG mode may need a reboot. `unmanaged` lists the GPUs that lost
    their layout entry. `not_restored` has a sentence for each GPU without an entry that cannot be restored.
    """

    plan: Plan
    host: Host
    recovered: str | None = None
    ended: tuple[str, ...] = ()
    reboot_required: bool = False
    followed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    reboots: tuple[str, ...] = ()
    unmanaged: tuple[Unmanaged, ...] = ()
    not_restored: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return the plan as text, with lines for unmanaged GPUs and for reboots."""
        return [*self.plan.lines(), *(each.line() for each in self.unmanaged), *self.reboots]

    @property
    def changed(self) -> bool:
        return self.plan.changes or self.recovered == "old" or bool(self.followed)


@frozen
class _Observed:
    """The observed and recorded state that a plan starts from."""

    host: Host
    ownership: Ownership
    services: Sequence[Service]
    applied: Applied


def predict(request: Request, on_busy: str = FAIL, installs: bool = False) -> Run:
    """Return the plan of a run without changing anything.

    Needs no lock. Raises those errors of `converge` that can be predicted. If `installs` is true, missing software of
    services is not an error.
    """
    with vendor_of_host().open() as session:
        applied = _applied(request)
        known = Layout((*request.layout.entries, *applied.known))
        session.observers = observers_for(known, request.directory, request.parts)
        services = services_for(request.parts, known, session.private)
        host = look(session, services)
        ownership = Ownership(request.unlisted, _owned(request.directory, host), LeasedRecord(request.directory).read())
        observed = _Observed(host, ownership, services, applied)
        observed, working, decision = _decide_for_working(request, observed, on_busy == FAIL, installs)
        host, plan = observed.host, decision.plan
        if on_busy == FAIL:
            plan.refuse_disturbance()
        owed = PendingFollowUp(request.directory).due()
        follows = (plan.changes_devices or owed) and not session.private
        parts = {part.key: part for part in plan.parts}
        missing = tuple(filter(None, (service.missing(parts[service.key]) for service in services)))
        followed: tuple[str, ...] = ()
        if follows:
            from ..cdi.follow import predict

            followed = predict(request.services, again=owed)
        switching = [each.gpu for each in plan.gpus if each.needs(RESET)]
        reboots = tuple(filter(None, (divider_of(gpu).reboot_line(gpu) for gpu in switching)))
        run = Run(plan, host, followed=followed, missing=missing, warnings=working.warnings, reboots=reboots)
        return dataclasses.replace(run, unmanaged=decision.unmanaged, not_restored=decision.warnings)


def converge(
    request: Request, lock_timeout_seconds: float, on_busy: OnBusy = REFUSE, leave_pending: bool = False
) -> Run:
    """Apply the requested layout to the GPUs of the host.

    If devices change, CDI specifications are regenerated and services are restarted. If `leave_pending` is true and the
    plan changes MIG modes, only the modes are set, as pending. The caller must then reboot the host at once
    (`Run.reboot_required`).

    Raises DriverAbsentError, SelectorError or PlanError before anything changes. Raises BusyError or ApplyError, both
    with an outcome, after a change has started. Raises FollowError if the layout was applied but a follow-up step
    failed.
    """
    work = _Attempts(request, on_busy, leave_pending)
    waiting = WaitingRun(request.directory)

    def attempt() -> Run:
        with contextlib.ExitStack() as held:
            held.enter_context(locked(request.directory, lock_timeout_seconds))
            try:
                return work.attempt(held.enter_context(vendor_of_host().open()))
            except BusyError:
                # While this run waits for holders to end, no new lease may take their place.
                if on_busy.policy == WAIT:
                    waiting.begin()
                raise

    try:
        return wait_until_free(attempt, on_busy)
    finally:
        if on_busy.policy == WAIT:
            waiting.end()


class _Attempts:
    """The state of a run, which may make several attempts."""

    def __init__(self, request: Request, on_busy: OnBusy, leave_pending: bool) -> None:
        self.request, self.on_busy, self.leave_pending = request, on_busy, leave_pending
        self.journal, self.record = Journal(request.directory), Record(request.directory)
        self.leased = LeasedRecord(request.directory)
        self.follow_up, self.pending_reboot = PendingFollowUp(request.directory), PendingReboot(request.directory)
        #: Whether an earlier run left follow-up steps pending. Reading this needs the lock, so it is read once, in the
        #: first attempt.
        self.owed: bool | None = None
        self.recovered: str | None = None
        self.ended: list[str] = []
        #: Number of GPUs that were lost when the plan was made.
        self.lost = 0
        #: Whether the plan restores GPUs without an entry, and the error if an attempt to restore them failed.
        self.restores = False
        self.not_restored = ""

    def attempt(self, session: Session) -> Run:
        if self.owed is None:
            self.owed = self.follow_up.due()
        try:
            run = self._without_new_sick(session)
        except ApplyError as error:
            if error.outcome == "old" and error.steps_done:
                # Restart the clients of recreated devices. If a restart fails, the host's mark for the next run stays,
                # and the error of the change itself is raised.
                with contextlib.suppress(FollowError):
                    self._follow(session)
            raise
        if run.reboot_required:
            # The devices are recreated by the reboot, so do not restart their clients now.
            return run
        return dataclasses.replace(run, followed=self._follow(session))

    def _without_new_sick(self, session: Session) -> Run:
        """Attempt the change. If GPUs that may be skipped fail, retry without them."""
        while True:
            try:
                return self._attempt(session)
            except ApplyError as error:
                if error.outcome == "old" and self.restores and self.request.saved is None:
                    # Retry at most once, because a GPU without an entry must not block the other GPUs.
                    self.restores, self.not_restored = False, str(error)
                    continue
                may_skip = self.request.lost == lost_gpus.SKIP and self.request.saved is None
                # The loop ends, because the number of lost GPUs grows with each attempt.
                if not may_skip or error.outcome != "old" or not self._lost_more(session, error):
                    raise

    def _lost_more(self, session: Session, error: ApplyError) -> bool:
        """Return whether a GPU was lost after the plan was made.

        If a step of one GPU failed while other GPUs work, marks that GPU as lost.
        """
        host, cause = session.observe(), error.__cause__
        if len(host.lost) > self.lost:
            return True
        working = {gpu.uuid for gpu in host.gpus}
        if not isinstance(cause, DeviceError) or error.reboot_needed or cause.code in (None, cause.IN_USE):
            return False
        if cause.gpu not in working or len(working) == 1:
            return False
        session.give_up(cause.gpu, cause)
        return True

    def _attempt(self, session: Session) -> Run:
        own: Pids = {}

        def look_again(gpu: str | None = None) -> Host:
            # Processes of a service that keeps running do not block the change. Processes that should have stopped do.
            return observe(session, own, gpu)

        clear = self._clear if self.on_busy.policy == FORCE else None
        if self.journal.read() is not None:
            from .apply_plan import Context
            from .recovery import recover

            context = Context(
                session, self.journal, self.record, look_again, clear, self._applied_record(), self.leased
            )
            self.recovered = recover(context, [each.service(session.private) for each in SERVING])
        applied = _applied(self.request)
        known = Layout((*self.request.layout.entries, *applied.known))
        session.observers = observers_for(known, self.request.directory, self.request.parts)
        services = services_for(self.request.parts, known, session.private)
        host = look(session, services)
        ownership = Ownership(self.request.unlisted, self.record.read(), self.leased.read())
        observed, working, decision = _decide_for_working(
            self.request, _Observed(host, ownership, services, applied), clear is None, restore=not self.not_restored
        )
        plan, self.restores = decision.plan, decision.restores
        if observed.host is not host:
            from .sick_gpus import give_up

            give_up(session, [gpu for gpu in observed.host.lost if gpu not in host.lost])
            host = observed.host
        lost = host.lost
        self.lost = len(lost)
        if GPUS in self.request.parts:
            # Modes that an earlier run left pending are set or reverted by the rest of this run.
            self.pending_reboot.end()
        own = staying(plan, services)
        if plan.changes and clear is None:
            plan.refuse_disturbance()
        if self.leave_pending and any(each.needs(RESET) for each in plan.gpus):
            # Clients of services that would keep running also count, because the reboot ends them too.
            self._refuse_loss(observe(session, merged(each.own(clients=False) for each in services)), decision)
            self._leave_pending(session, plan)
            run = Run(plan, look_again(), self.recovered, tuple(self.ended), True, warnings=working.warnings)
            return dataclasses.replace(run, unmanaged=decision.unmanaged, not_restored=decision.warnings)
        if plan.changes:
            if clear is not None:
                self._end_leases(plan)
            if plan.changes_devices:
                self.follow_up.begin()
            self._record_coming(host, plan)
            from .apply_plan import Context, apply

            context = Context(
                session, self.journal, self.record, look_again, clear, self._applied_record(), self.leased
            )
            after = decision.applied.to_data() if decision.applied.entries is not None else None
            host = apply(context, plan, ownership, _changes(services, plan, look_again, clear), after)
        for technique in SETTINGS:
            if technique.observer in session.observers:
                # The lost GPU's setting is unknown. The next run must read it again.
                technique.record(self.request.directory, host.gpus, [gpu.uuid for gpu in host.lost if gpu.uuid])
        if GPUS in self.request.parts:
            # Record matching instances that already exist, so that the collection owns them from now on.
            seen = {gpu.uuid: gpu for gpu in host.gpus}
            self.record.adopt((seen[gpu.gpu.uuid], gpu.left) for gpu in plan.gpus if gpu.gpu.uuid in seen)
        if decision.applied.entries is not None:
            self._applied_record().write(decision.applied.to_data())
        failed = ("unmanaged GPUs are not restored: %s" % self.not_restored,) if self.not_restored else ()
        run = Run(plan, host, self.recovered, tuple(self.ended), warnings=(*working.warnings, *newly_lost(lost, host)))
        return dataclasses.replace(run, unmanaged=decision.unmanaged, not_restored=failed or decision.warnings)

    def _applied_record(self) -> AppliedRecord:
        from .unnamed import AppliedRecord

        return AppliedRecord(self.request.directory)

    def _leave_pending(self, session: Session, plan: Plan) -> None:
        """Leave changed MIG modes pending, and set the mark for a reboot.

        The mark is set before the first mode. If this process is killed in between, the next boot keeps the layout that
        matches the pending modes.
        """
        self.pending_reboot.begin()
        try:
            plans = [each for each in plan.gpus if each.needs(RESET)]
            divider_of(plans[0].gpu).leave_pending(session, plans)
        except BaseException:
            self.pending_reboot.end()
            raise

    def _record_coming(self, host: Host, plan: Plan) -> None:
        """Record GPU settings before they change.

        After an interruption, the next run then reads these settings too.
        """
        for technique in SETTINGS:
            default = (None, technique.default)
            changing = {gpu.gpu.uuid for gpu in plan.gpus if gpu.target.settings.get(technique.setting) not in default}
            if changing:
                technique.record(
                    self.request.directory, host.gpus, changing.union(gpu.uuid for gpu in host.lost if gpu.uuid)
                )

    def _clear(self, disturbs: Sequence[Disturbance]) -> bool:
        from .terminate import end_holders

        ended = end_holders(disturbs, self.on_busy.grace_seconds)
        self.ended += ended
        return bool(ended)

    def _end_leases(self, plan: Plan) -> None:
        """Stop the units of the leases that the plan ends."""
        leases = dict.fromkeys(h.who for one in plan.disturbs for h in one.who if h.kind == LEASE)
        if leases:
            from .terminate import end_leases

            self.ended += end_leases(leases)

    def _follow(self, session: Session) -> tuple[str, ...]:
        """Run the pending follow-up steps for changed devices.

        Either this run or an earlier, incomplete run changed the devices.
        """
        if GPUS not in self.request.parts or not self.follow_up.due():
            # Only a run that changes GPUs restarts services that depend on the list of devices.
            return ()
        followed: tuple[str, ...] = ()
        if not session.private:
            from ..cdi.follow import follow

            followed = follow(self.request.services, again=bool(self.owed))
        self.follow_up.end()
        return followed

    def _refuse_loss(self, host: Host, decision: Decision) -> None:
        """Refuse a reboot that would end holders or lose instances.

        Checks the holders of all GPUs on the host. An instance is lost if the boot service does not recreate it.
        """
        ownership = Ownership(self.request.unlisted, self.record.read(), self.leased.read())
        disturbs = ended_workloads(host, ownership, "whose host would reboot")
        if disturbs and self.on_busy.policy != FORCE:
            raise BusyError(disturbs, "the required reboot would end these workloads", "Stop them and run again.")
        left = {gpu.gpu.uuid: gpu.left for gpu in decision.plan.gpus}
        lost = [
            "%s: %s" % (gpu.short_label, instance_text(instance))
            for gpu in host.gpus
            for instance in left.get(gpu.uuid, parts_of(gpu))
            if (instance.profile, instance.start) not in decision.kept_places(gpu.uuid)
            and ownership.lease(gpu, instance) is None
        ]
        if lost and self.request.unlisted != "remove":
            raise ApplyError(
                "; ".join(lost),
                "the required reboot destroys all instances, and the layout does not recreate these",
                "Name them in gpu_layout, or set gpu_layout_unlisted to remove.",
                outcome="old",
            )


def _applied(request: Request) -> Applied:
    """Return the record of applied entries.

    The record is empty if the run applies only a part of the layout.
    """
    from .unnamed import Applied, AppliedRecord

    return AppliedRecord(request.directory).read() if request.whole else Applied(())


def _decide_for_working(
    request: Request, observed: _Observed, refuses: bool, installs: bool = False, restore: bool = True
) -> tuple[_Observed, Answering, Decision]:
    """Decide on the layout for the working GPUs. All other GPUs count as lost.

    A GPU also counts as lost if its missing values cause a refusal of the layout. If `refuses` is true, blocking
    holders also cause a refusal.
    """

    def decide(host: Host, policy: str, refuses: bool) -> tuple[_Observed, Answering, Decision]:
        working, seen = answering(request.layout, host, policy), dataclasses.replace(observed, host=host)
        decision = _decide(request, working.layout, seen, installs, restore)
        if refuses:
            decision.plan.refuse_disturbance()
        return seen, working, decision

    try:
        return decide(observed.host, request.lost, refuses)
    except (PlanError, BusyError) as error:
        from .sick_gpus import sick_gpus, without

        def attempt(host: Host) -> None:
            decide(host, lost_gpus.SKIP, refuses)

        sick = () if request.saved is not None else sick_gpus(observed.host, error, attempt)
        if not sick and isinstance(error, PlanError):
            raise
        # Do not refuse disturbances here. The caller does so at the right time.
        return decide(without(observed.host, sick), request.lost, False)


def _decide(
    request: Request, layout: Layout, observed: _Observed, installs: bool = False, restore: bool = True
) -> Decision:
    """Plan the requested layout, and the GPUs that lost their layout entry.

    `layout` has no entries for lost GPUs that are skipped.
    """
    from .unnamed import Applied, AppliedRecord, Decision, Situation, decide, without_service

    host, ownership, services = observed.host, observed.ownership, observed.services

    def make(layout: Layout, saved: Mapping[str, Any] | None = None) -> Plan:
        return make_plan(layout, host, ownership, PlanRequest(request.parts, saved, installs), services)

    if not request.whole:
        plan, record = make(layout, request.saved), Applied()
        removed = [each.key for each in SERVING if removal_of(each.key) in request.parts]
        if removed:
            record = AppliedRecord(request.directory).read()
            for key in removed:
                record = without_service(record, key)
        return Decision(plan, record)
    seen = {each.key: each.seen for each in services}
    situation = Situation(layout, host, ownership, seen, observed.applied, _saved_gpus(request.saved))
    return decide(situation, request.unnamed, make, lambda last: make(last, request.saved), restore)


def _saved_gpus(saved: Mapping[str, Any] | None) -> frozenset[str]:
    """Return the UUIDs, in lower case, of the GPUs in a saved plan.

    Returns an empty set if `saved` is not a valid plan. The error is raised later.
    """
    gpus = saved.get("gpus") if isinstance(saved, Mapping) else None
    rows = gpus if isinstance(gpus, (list, tuple)) else ()
    return frozenset(str(row.get("uuid")).lower() for row in rows if isinstance(row, Mapping))


def _owned(directory: str, host: Host) -> frozenset[Owned]:
    """Return the collection's instances as they will be recorded after recovery."""
    owned = Record(directory).read()
    entry = Journal(directory).read()
    if entry is None:
        return owned
    targets = (*entry.before, *entry.after)
    named = {(target.gpu_uuid, wanted.profile) for target in targets for wanted in parts_of(target)}
    made = {
        owned_instance(gpu, instance)
        for gpu in host.gpus
        for instance in parts_of(gpu)
        if (gpu.uuid, instance.profile) in named
    }
    places = {(item.gpu_uuid, item.profile, item.start) for item in made}
    return frozenset(made | {o for o in owned if (o.gpu_uuid, o.profile, o.start) not in places})


def _changes(services: Sequence[Service], plan: Plan, look: Look, clear: Clear | None) -> list[Change]:
    parts = {part.key: part for part in plan.parts}
    changes = [service.change(parts[service.key], look, clear) for service in services]
    return [change for change in changes if change is not None]
