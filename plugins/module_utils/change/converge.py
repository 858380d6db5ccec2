# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run on a host: complete an interrupted run, observe, plan, apply, record.

`busy.OnBusy` decides about blocking processes.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any, Mapping, Sequence

from ..busy import FAIL, FORCE, REFUSE, OnBusy, wait_until_free
from ..disturbance import Disturbance
from ..errors import ApplyError, BusyError, FollowError
from ..frozen import frozen
from ..gpu_plan import Plan, instance_text
from ..layout.types import Layout
from ..model import Host
from ..nvml.bounded_session import BoundedSession
from ..ownership import KEEP, Owned, Ownership, Record, owned_instance
from ..services import Change, Clear, Look, Pids, Service, merged
from ..techniques.registry import DIVIDER, SERVING, SETTINGS, observers_for
from ..transaction import Journal, locked
from . import lost_gpus
from .lost_gpus import answering, newly_lost
from .pending import PendingFollowUp, PendingReboot
from .prepare import ALL_PARTS, GPUS, PlanRequest, look, make_plan, observe, removal_of, services_for, staying

if TYPE_CHECKING:
    from .unnamed import Applied, AppliedRecord, Decision, Unmanaged


@frozen
class Request:
    """The request of a run: these `parts` of the layout, by a `saved` plan if given.

    `directory` is the host's state directory, `unlisted` one of ownership.POLICIES, `lost` one of lost_gpus.POLICIES,
    `unnamed` one of ownership.UNNAMED_POLICIES, which only a run about all parts uses.
    If devices change, `services` are restarted (docs/after-a-change.md).
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
        """Return whether the run is about all parts of the layout."""
        return set(ALL_PARTS).issubset(self.parts)


@frozen
class Run:
    """The plan of a run, the host as last read, and the layout after completing an interrupted run (old, new, or None).

    `ended` names the ended processes, `followed` the follow-up steps of changed devices. With `reboot_required` the plan is not
    applied: its MIG modes wait for a reboot of the host. `missing` is software that must be installed before a foreseen plan can
    be applied. `warnings` has a sentence for each lost GPU,
    `reboots` one for each GPU whose MIG mode may need a reboot. `unmanaged` has the GPUs that had an entry and that no entry
    names any more, `not_restored` a sentence for each of them that cannot be restored.
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
        """Return the plan for people, with a line for each unmanaged GPU and each reboot."""
        return [*self.plan.lines(), *(each.line() for each in self.unmanaged), *self.reboots]

    @property
    def changed(self) -> bool:
        return self.plan.changes or self.recovered == "old" or bool(self.followed)


@frozen
class _Observed:
    """The input of a plan apart from the request."""

    host: Host
    ownership: Ownership
    services: Sequence[Service]
    applied: Applied


def predict(request: Request, on_busy: str = FAIL, installs: bool = False) -> Run:
    """Return a run's plan. Changes nothing and needs no lock. Raises the foreseeable errors of `converge`.

    With `installs` the software of services may be missing.
    """
    with BoundedSession() as session:
        applied = _applied(request)
        known = Layout((*request.layout.entries, *applied.known))
        session.observers = observers_for(known, request.directory, request.parts)
        services = services_for(request.parts, known, session.private)
        host = look(session, services)
        ownership = Ownership(request.unlisted, _owned(request.directory, host))
        working = answering(request.layout, host, request.lost)
        decision = _decide(request, working.layout, _Observed(host, ownership, services, applied), installs)
        plan = decision.plan
        if on_busy == FAIL:
            plan.refuse_disturbance()
        owed = PendingFollowUp(request.directory).due()
        follows = (plan.changes_devices or owed) and not session.private
        parts = {part.key: part for part in plan.parts}
        missing = tuple(filter(None, (service.missing(parts[service.key]) for service in services)))
        followed: tuple[str, ...] = ()
        if follows:
            from ..follow import predict

            followed = predict(request.services, again=owed)
        reboots: tuple[str, ...] = ()
        switching = [each.gpu for each in plan.gpus if DIVIDER.mode_changes(each)]
        if switching:
            from ..holders.kernel import foreseen

            reboots = tuple(filter(None, map(foreseen, switching)))
        run = Run(plan, host, followed=followed, missing=missing, warnings=working.warnings, reboots=reboots)
        return dataclasses.replace(run, unmanaged=decision.unmanaged, not_restored=decision.warnings)


def converge(
    request: Request, lock_timeout_seconds: float, on_busy: OnBusy = REFUSE, leave_pending: bool = False
) -> Run:
    """Change the host's GPUs as requested.

    If devices change, CDI specifications are written again and services restarted. With `leave_pending` a plan that changes MIG
    modes is not applied: the modes are left pending, and the caller reboots the host at once (`Run.reboot_required`).

    Raises DriverAbsentError, SelectorError, PlanError before anything changes, BusyError and ApplyError with an outcome
    afterwards, and FollowError if the layout was applied and a follow-up step failed.
    """
    work = _Attempts(request, on_busy, leave_pending)

    def attempt() -> Run:
        with contextlib.ExitStack() as held:
            held.enter_context(locked(request.directory, lock_timeout_seconds))
            return work.attempt(held.enter_context(BoundedSession()))

    return wait_until_free(attempt, on_busy)


class _Attempts:
    """The state of a run, which may take several attempts if it waits."""

    def __init__(self, request: Request, on_busy: OnBusy, leave_pending: bool) -> None:
        self.request, self.on_busy, self.leave_pending = request, on_busy, leave_pending
        self.journal, self.record = Journal(request.directory), Record(request.directory)
        self.follow_up, self.pending_reboot = PendingFollowUp(request.directory), PendingReboot(request.directory)
        #: Whether an earlier run left follow-up steps undone. Read under the lock, the first time.
        self.owed: bool | None = None
        self.recovered: str | None = None
        self.ended: list[str] = []
        #: How many GPUs were lost when the plan was made.
        self.lost = 0
        #: Whether the plan restores GPUs without an entry, and why it no longer may.
        self.restores = False
        self.not_restored = ""

    def attempt(self, session: BoundedSession) -> Run:
        if self.owed is None:
            self.owed = self.follow_up.due()
        try:
            run = self._without_new_sick(session)
        except ApplyError as error:
            if error.outcome == "old" and error.steps_done:
                # Recreated devices are new devices. If their clients cannot be restarted, the mark stays for the next run,
                # and the first failure is raised.
                with contextlib.suppress(FollowError):
                    self._follow(session)
            raise
        if run.reboot_required:
            # The boot recreates the devices, and their clients start after it.
            return run
        return dataclasses.replace(run, followed=self._follow(session))

    def _without_new_sick(self, session: BoundedSession) -> Run:
        """Attempt the change. If GPUs that may be skipped fail meanwhile, repeat it without them."""
        while True:
            try:
                return self._attempt(session)
            except ApplyError as error:
                if error.outcome == "old" and self.restores and self.request.saved is None:
                    # A GPU without an entry must not block the others. This happens once.
                    self.restores, self.not_restored = False, str(error)
                    continue
                may_skip = self.request.lost == lost_gpus.SKIP and self.request.saved is None
                # The number of lost GPUs grows each time, so this ends.
                if not may_skip or error.outcome != "old" or len(session.observe().lost) <= self.lost:
                    raise

    def _attempt(self, session: BoundedSession) -> Run:
        own: Pids = {}

        def look_again(gpu: str | None = None) -> Host:
            # A service that is kept does not block the change. One that should have stopped does.
            return observe(session, own, gpu)

        clear = self._clear if self.on_busy.policy == FORCE else None
        if self.journal.read() is not None:
            from .apply_plan import Context
            from .recovery import recover

            context = Context(session, self.journal, self.record, look_again, clear, applied=self._applied_record())
            self.recovered = recover(context, [each.service(session.private) for each in SERVING])
        applied = _applied(self.request)
        known = Layout((*self.request.layout.entries, *applied.known))
        session.observers = observers_for(known, self.request.directory, self.request.parts)
        services = services_for(self.request.parts, known, session.private)
        host = look(session, services)
        lost = host.lost
        self.lost = len(lost)
        ownership = Ownership(self.request.unlisted, self.record.read())
        working = answering(self.request.layout, host, self.request.lost)
        restore = not self.not_restored
        observed = _Observed(host, ownership, services, applied)
        decision = _decide(self.request, working.layout, observed, restore=restore)
        plan, self.restores = decision.plan, decision.restores
        if GPUS in self.request.parts:
            # From here on, pending modes of an earlier run are set or reverted.
            self.pending_reboot.end()
        own = staying(plan, services)
        if plan.changes and clear is None:
            plan.refuse_disturbance()
        if self.leave_pending and any(map(DIVIDER.mode_changes, plan.gpus)):
            # Clients of kept services count here, because the reboot would end them too.
            self._refuse_loss(observe(session, merged(each.own(clients=False) for each in services)), decision)
            self._leave_pending(session, plan)
            run = Run(plan, look_again(), self.recovered, tuple(self.ended), True, warnings=working.warnings)
            return dataclasses.replace(run, unmanaged=decision.unmanaged, not_restored=decision.warnings)
        if plan.changes:
            if plan.changes_devices:
                self.follow_up.begin()
            self._record_coming(host, plan)
            from .apply_plan import Context, apply

            context = Context(session, self.journal, self.record, look_again, clear, applied=self._applied_record())
            after = decision.applied.to_data() if decision.applied.entries is not None else None
            host = apply(context, plan, ownership, _changes(services, plan, look_again, clear), after)
        for technique in SETTINGS:
            if technique.observer in session.observers:
                # The setting of a lost GPU is unknown: the next run reads it again.
                technique.record(self.request.directory, host.gpus, [gpu.uuid for gpu in host.lost if gpu.uuid])
        if GPUS in self.request.parts:
            # Existing instances that the layout names are adopted, too.
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

    def _leave_pending(self, session: BoundedSession, plan: Plan) -> None:
        """Record it before the first mode is set, so that a boot after a kill has the layout with these modes."""
        self.pending_reboot.begin()
        try:
            DIVIDER.leave_pending(session, plan)
        except BaseException:
            self.pending_reboot.end()
            raise

    def _record_coming(self, host: Host, plan: Plan) -> None:
        """Record settings before the change, so that the run after an interrupted one reads them, too."""
        for technique in SETTINGS:
            default = (None, technique.default)
            changing = {gpu.gpu.uuid for gpu in plan.gpus if gpu.target.settings.get(technique.setting) not in default}
            if changing:
                technique.record(
                    self.request.directory, host.gpus, changing.union(gpu.uuid for gpu in host.lost if gpu.uuid)
                )

    def _clear(self, disturbs: Sequence[Disturbance]) -> bool:
        from ..terminate import end_holders

        ended = end_holders(disturbs, self.on_busy.grace_seconds)
        self.ended += ended
        return bool(ended)

    def _follow(self, session: BoundedSession) -> tuple[str, ...]:
        """Run the follow-up steps of changed devices, of this run or an earlier one that did not complete them."""
        if GPUS not in self.request.parts or not self.follow_up.due():
            # Only a run that changes GPUs restarts services that list them.
            return ()
        followed: tuple[str, ...] = ()
        if not session.private:
            from ..follow import follow

            followed = follow(self.request.services, again=bool(self.owed))
        self.follow_up.end()
        return followed

    def _refuse_loss(self, host: Host, decision: Decision) -> None:
        """Refuse a reboot that would end holders of any GPU, or lose an instance that the boot does not restore."""
        held = [(gpu, [h for h in gpu.held_by if not h.watches]) for gpu in host.gpus]
        disturbs = [
            Disturbance("%s, whose host would reboot," % gpu.short_label, tuple(who)) for gpu, who in held if who
        ]
        if disturbs and self.on_busy.policy != FORCE:
            raise BusyError(disturbs, "the required reboot would end these workloads", "Stop them and run again.")
        left = {gpu.gpu.uuid: gpu.left for gpu in decision.plan.gpus}
        lost = [
            "%s: %s" % (gpu.short_label, instance_text(instance))
            for gpu in host.gpus
            for instance in left.get(gpu.uuid, gpu.mig.instances)
            if (instance.profile, instance.placement.start) not in decision.kept_places(gpu.uuid)
        ]
        if lost and self.request.unlisted != "remove":
            raise ApplyError(
                "; ".join(lost),
                "the required reboot destroys all instances, and the layout does not recreate these",
                "Name them in gpu_layout, or set gpu_layout_unlisted to remove.",
                outcome="old",
            )


def _applied(request: Request) -> Applied:
    """Return the record of applied entries, or an empty one if the run is about a part of the layout."""
    from .unnamed import Applied, AppliedRecord

    return AppliedRecord(request.directory).read() if request.whole else Applied(())


def _decide(
    request: Request, layout: Layout, observed: _Observed, installs: bool = False, restore: bool = True
) -> Decision:
    """Plan the request's layout without skipped lost GPUs, and the GPUs that lost their entry."""
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
    """Return the UUIDs in lower case of the GPUs in a saved plan; none if it is not a plan, which is reported later."""
    gpus = saved.get("gpus") if isinstance(saved, Mapping) else None
    rows = gpus if isinstance(gpus, (list, tuple)) else ()
    return frozenset(str(row.get("uuid")).lower() for row in rows if isinstance(row, Mapping))


def _owned(directory: str, host: Host) -> frozenset[Owned]:
    """Return the collection's instances as recorded after an interrupted run is completed."""
    owned = Record(directory).read()
    entry = Journal(directory).read()
    if entry is None:
        return owned
    targets = (*entry.before, *entry.after)
    named = {(target.gpu_uuid, wanted.profile) for target in targets for wanted in target.instances}
    made = {
        owned_instance(gpu, instance)
        for gpu in host.gpus
        for instance in gpu.mig.instances
        if (gpu.uuid, instance.profile) in named
    }
    places = {(item.gpu_uuid, item.profile, item.start) for item in made}
    return frozenset(made | {o for o in owned if (o.gpu_uuid, o.profile, o.start) not in places})


def _changes(services: Sequence[Service], plan: Plan, look: Look, clear: Clear | None) -> list[Change]:
    parts = {part.key: part for part in plan.parts}
    changes = [service.change(parts[service.key], look, clear) for service in services]
    return [change for change in changes if change is not None]
