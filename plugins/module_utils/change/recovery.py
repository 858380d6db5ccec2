# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Complete an interrupted run: restore the old layout, or apply the new one if restoring would end holders."""

from __future__ import annotations

import functools
from typing import Sequence

from .. import durable
from ..busy import can_be_ended
from ..errors import ApplyError, BusyError, FleetError, UnansweredCallError, attempt_all
from ..gpu_plan import Plan, Target
from ..model import Gpu, Host, lost_of
from ..nvml.bounded_session import BoundedSession
from ..services import Service
from ..techniques.observers import OBSERVERS
from ..transaction import Entry, Journal
from . import planner
from .apply_plan import Context, end_journal, expect, go_back, run_steps, settled, working


def recover(context: Context, services: Sequence[Service] = ()) -> str | None:
    """Complete an interrupted run. Return the current layout, old or new, or None if there was no such run.

    The new layout stays if the run had completed it. Otherwise the old one is restored. If that would end a holder (a job that
    started since), the new one is completed instead, if that ends none. If both would, `clear` ends it, or BusyError is raised.
    With the old layout, stopped or changed `services` are restored. Raises ApplyError if it fails. The journal then stays.
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
        # The journal has only lost GPUs, and waits for them.
        return None
    before, after = ([t for t in targets if t.gpu_uuid in uuids] for targets in (entry.before, entry.after))
    outcome = "new"
    changed = [service for service in services if service.key in entry.beside]
    only_services = not entry.before and not entry.after
    unfinished = only_services and any(service.unfinished(entry.beside[service.key]) for service in changed)
    reached = None if unfinished else _reached(gpus, after)
    if reached is None:
        try:
            host, reached = _back_or_on(context, before, after)
        except UnansweredCallError as error:
            problem = "%s, and its recovery as well: %s" % (entry.interrupted(), error.problem)
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
        elif record is not None:
            record.adopt((gpu.gpu, [i for i in gpu.gpu.mig.instances if i not in gpu.kept]) for gpu in reached.gpus)
        if context.applied is not None and entry.applied:
            context.applied.write(entry.applied[outcome])
        end_journal(journal, host, entry.before, entry.after)
    return outcome


def _observe_settings(session: BoundedSession, journal: Journal, entry: Entry) -> None:
    """Read every setting in the journal, independent of this run's parts, to compare it with the old and the new value."""
    settings = [setting for target in (*entry.before, *entry.after) for setting in target.settings.items()]
    if not {name for name, _value in settings}.issubset(observer.setting for observer in OBSERVERS):
        raise durable.damaged(journal.path)
    named = {name for name, value in settings if value}
    session.observers = tuple(observer for observer in OBSERVERS if observer.setting in named)


def _back_or_on(context: Context, before: Sequence[Target], after: Sequence[Target]) -> tuple[Host, Plan | None]:
    """Restore the old layout or complete the new one. Return the host, and for the new one the plan without steps."""
    try:
        return go_back(context, before), None
    except BusyError as busy:
        try:
            on = planner.plan(context.observe().gpus, after)
        except FleetError:
            on = None
        if on is None or on.disturbs:
            if context.clear is None:
                raise
            context.clear(busy.disturbs)
            return go_back(context, before, can_be_ended), None
    for gpu_plan in on.gpus:
        run_steps(context, gpu_plan, [])
    host = context.session.observe()
    after = working(after, host)
    expect(host, after)
    return host, _reached(host.gpus, after)


def _reached(gpus: Sequence[Gpu], targets: Sequence[Target]) -> Plan | None:
    """Return the plan to these targets if it has no steps."""
    try:
        plan = planner.plan(gpus, targets)
    except FleetError:
        # The target is no longer possible, for example after a change of the driver or the card.
        return None
    return None if plan.changes else plan
