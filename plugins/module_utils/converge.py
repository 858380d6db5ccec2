# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One run over a host, whoever asks for it: clear up after a run that was cut off, observe, plan, apply, record."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Mapping

from . import mig_apply, mig_plan, plan_file
from .holders import find_holders
from .holders_mark import mark
from .layout_types import Layout
from .mig_steps import Plan
from .model import Host
from .nvml import Session
from .ownership import Ownership, Record
from .selector import targets
from .transaction import Journal, locked


@dataclass(frozen=True)
class Run:
    """What one run planned, what it saw last, and which layout stood after it had cleared up (old, new, or None)."""

    plan: Plan
    host: Host
    recovered: str | None = None

    @property
    def changed(self) -> bool:
        return self.plan.changes or self.recovered == "old"


def foresee(layout: Layout, directory: str, unlisted: str, saved: Mapping[str, Any] | None = None) -> Run:
    """What a run would do. Changes nothing, and needs no lock. Raises as `converge` does, as far as it can be known."""
    with Session() as session:
        host = _observe(session)
        # Where a run was cut off, the next one clears up before it asks whose instances these are.
        cut_off = Journal(directory).read() is not None
        ownership = mig_plan.ALL_OURS if cut_off else Ownership(unlisted, Record(directory).read())
        plan = _plan(layout, host, ownership, saved)
        mig_apply.refuse_disturbance(plan)
        return Run(plan, host)


def converge(
    layout: Layout,
    directory: str,
    unlisted: str,
    lock_timeout_seconds: float,
    saved: Mapping[str, Any] | None = None,
) -> Run:
    """Make the host's GPUs what the layout says, by the plan that was `saved` for it where there is one.

    Raises DriverAbsentError, SelectorError, PlanError before anything has changed; ApplyError with its outcome after.
    """
    with contextlib.ExitStack() as held:
        held.enter_context(locked(directory, lock_timeout_seconds))
        session = held.enter_context(Session())
        journal, record = Journal(directory), Record(directory)
        recovered = mig_apply.recover(session, journal, record=record)
        host = _observe(session)
        ownership = Ownership(unlisted, record.read())
        plan = _plan(layout, host, ownership, saved)
        if plan.changes:
            host = mig_apply.apply(
                session, plan, journal, ownership=ownership, record=record, look=lambda: _observe(session)
            )
        # What stood there already and is named by the layout is adopted too.
        seen = {gpu.uuid: gpu for gpu in host.gpus}
        record.adopt((seen[gpu.gpu.uuid], gpu.left) for gpu in plan.gpus)
        return Run(plan, host, recovered)


def _observe(session: Session) -> Host:
    """The host, with everybody who holds one of its GPUs or instances."""
    host = session.observe()
    return mark(host, find_holders(host))


def _plan(layout: Layout, host: Host, ownership: Ownership, saved: Mapping[str, Any] | None) -> Plan:
    wanted = targets(layout, host.gpus)
    if saved is None:
        return mig_plan.plan(host.gpus, wanted, ownership)
    return plan_file.restore(saved, host, wanted, ownership)
