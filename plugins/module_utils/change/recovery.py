# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Complete an interrupted run.

The old layout is restored. If this would end holders, the new layout is applied instead.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Sequence

from .. import durable
from ..errors import ApplyError, BusyError, FleetError, UnansweredCallError, attempt_all
from ..model import Device, Host, lost_of, parts_of
from ..plan.busy import can_be_ended
from ..plan.gpu_plan import Plan, Target
from ..plan.ownership import Ownership
from ..plan.services import Service
from ..techniques.observers import OBSERVERS
from ..vendors.registry import VENDORS
from . import planner
from .apply_plan import Context, end_journal, expect, go_back, run_plans, settled, working
from .journal import Entry, Journal

if TYPE_CHECKING:
    from ..vendors.protocol import Session


def recover(context: Context, services: Sequence[Service] = ()) -> str | None:
    """Complete an interrupted run, and return the resulting layout.

    Returns "old", "new", or None if there was no interrupted run.

    If the interrupted run had reached the new layout, it is kept. Otherwise the old layout is restored, with the
    `services` that were stopped or changed. If the restore would end a holder, such as a job that has started since,
    the new layout is completed instead. If both would end holders, `context.clear` ends them. If `context.clear` is
    None, BusyError is raised. Raises ApplyError if the recovery fails. The journal is then kept.
    """
    journal, record = context.journal, context.record
    entry = journal.read()
    if entry is None:
        return None
    _observe_settings(context.session, journal, entry)
    host = context.observe()
    gpus = host.gpus
    uuids = {gpu.uuid for gpu in gpus}
    named = {target.gpu_uuid for target in (*entry.before, *entry.after)}
    if named and not named & uuids and not entry.beside and any(lost_of(host, uuid) for uuid in named):
        # The journal only has targets of lost GPUs. Keep it until these GPUs work again.
        return None
    before, after = ([t for t in targets if t.gpu_uuid in uuids] for targets in (entry.before, entry.after))
    outcome = "new"
    changed = [service for service in services if service.key in entry.beside]
    only_services = not entry.before and not entry.after
    unfinished = only_services and any(service.unfinished(entry.beside[service.key]) for service in changed)
    ours = Ownership("remove", leased=frozenset() if context.leased is None else context.leased.read())
    # A journal does not record which entries have leases. Keep instances of leases if there is room.
    after = [dataclasses.replace(target, leases=True) for target in after]
    reached = None if unfinished else _reached(gpus, after, ours)
    if reached is None:
        try:
            host, reached = _back_or_on(context, before, after, ours)
        except UnansweredCallError as error:
            problem = "%s, and its recovery failed too: %s" % (entry.interrupted(), error.problem)
            cure = "%s The journal is kept, and the next run tries again." % error.ADVICE
            raise ApplyError(error.where, problem, cure) from error
        except FleetError as error:
            problem = "%s, and the previous layout cannot be restored: %s" % (entry.interrupted(), error.problem)
            cure = "%s Or remove %s to continue from the current state." % (error.cure, journal.path)
            if isinstance(error, BusyError):
                raise BusyError(error.disturbs, problem, cure) from error
            raise ApplyError(error.where, problem, cure) from error
        if reached is None:
            outcome = "old"
    if outcome == "old":
        attempt_all(
            *(functools.partial(service.bring_back, entry.beside[service.key], host) for service in changed),
        )
    with settled(outcome):
        if record is not None and reached is None:
            record.renew(host.gpus)
            if context.leased is not None:
                context.leased.renew(host.gpus)
        elif record is not None:
            record.adopt(
                (gpu.gpu, [i for i in parts_of(gpu.gpu) if i not in gpu.division.kept]) for gpu in reached.gpus
            )
        if context.applied is not None and entry.applied:
            context.applied.write(entry.applied[outcome])
        end_journal(journal, host, entry.before, entry.after)
    return outcome


def _observe_settings(session: Session, journal: Journal, entry: Entry) -> None:
    """Make the session read every setting in the journal.

    The current values are compared with the old and new values, even if this run does not manage the setting.
    """
    settings = [setting for target in (*entry.before, *entry.after) for setting in target.settings.items()]
    known = {each.setting for each in (*OBSERVERS, *(own for vendor in VENDORS for own in vendor.settings))}
    if not {name for name, _value in settings}.issubset(known):
        raise durable.damaged(journal.path)
    named = {name for name, value in settings if value}
    session.observers = tuple(observer for observer in OBSERVERS if observer.setting in named)


def _back_or_on(
    context: Context, before: Sequence[Target], after: Sequence[Target], ours: Ownership
) -> tuple[Host, Plan | None]:
    """Restore the old layout, or complete the new one if holders block the old one.

    Returns (host, None) if the old layout was restored. Returns the host and a plan without steps if the new layout was
    completed.
    """
    try:
        return go_back(context, before), None
    except BusyError as busy:
        try:
            on = planner.plan(context.observe().gpus, after, ours)
        except FleetError:
            on = None
        if on is None or on.disturbs:
            if context.clear is None:
                raise
            context.clear(busy.disturbs)
            return go_back(context, before, can_be_ended), None
    run_plans(context, on.gpus, [])
    host = context.session.observe()
    after = working(after, host)
    expect(host, after, ours)
    return host, _reached(host.gpus, after, ours)


def _reached(gpus: Sequence[Device], targets: Sequence[Target], ours: Ownership) -> Plan | None:
    """Return the plan for these targets if it has no steps, or None."""
    try:
        plan = planner.plan(gpus, targets, ours)
    except FleetError:
        # The target is no longer possible, for example because the driver or the card was replaced.
        return None
    return None if plan.changes else plan
