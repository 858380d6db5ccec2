# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How far a host's GPUs are from its layout: pure, and as lenient as a look at a host with a broken GPU has to be.

What a run would do is what differs. Unlike a run, this stops at nothing: what cannot be told of one GPU is a problem, and
the others are told of.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Sequence

from . import mig_plan, mps_plan, vgpu_plan
from .errors import FleetError, PlanError, SelectorError
from .layout_types import Entry, Layout
from .mig_steps import GpuPlan, Plan, Target
from .model import Gpu, Host
from .mps_host import adjustable
from .mps_model import MpsDaemon, MpsSeen
from .mps_steps import StartMps, StopMps
from .ownership import Ownership
from .selector import matches, select
from .targets import targets
from .vgpu_model import MPS, VgpuSeen
from .vgpu_steps import RemoveTenant


@dataclass(frozen=True)
class Standing:
    """A GPU that the layout names: how it shall be shared, and in what it differs from that, in the words of plans."""

    gpu_uuid: str
    sharing: str
    differences: tuple[str, ...] = ()


@dataclass(frozen=True)
class Beside:
    """What was seen beside the GPUs. None: nobody could look, or there is nothing that could be looked at."""

    daemons: tuple[MpsSeen, ...] | None = None
    tenants: tuple[VgpuSeen, ...] | None = None
    #: UUIDs of the GPUs whose memory the kernel bounds.
    dmem: frozenset[str] = frozenset()
    #: Whether the library is there that holds tenants to their quotas.
    library: bool = True


def answers(seen: MpsSeen) -> bool | None:
    """Whether a daemon is there for its clients; None while the host starts, and it with it."""
    if seen.running:
        return seen.active_thread_percentage is not None
    return None if seen.problem is None else False


def compare(
    layout: Layout, host: Host, ownership: Ownership, beside: Beside, lost: bool = False
) -> tuple[tuple[Standing, ...], tuple[FleetError, ...]]:
    """(the GPUs that the layout names, why others cannot be told of).

    `lost`: some GPU does not answer, and is not in `host`. Then an entry that finds a GPU less is no problem of its own, and
    what it shares out between its GPUs is not looked at.
    """
    wanted, partial, problems = _targets(layout, host, lost)
    by_uuid = {gpu.uuid: gpu for gpu in host.gpus}
    plans = []
    for target in wanted:
        try:
            plans.append(_planned(by_uuid[target.gpu_uuid], target, ownership, lost))
        except PlanError as error:
            problems.append(error)
            partial.add(target.where)
    plan = Plan(tuple(sorted(plans, key=lambda each: each.gpu.index)))
    whole = Layout(tuple(entry for entry in layout.entries if entry.where not in partial))
    found = {each.gpu.uuid: [str(step) for step in each.told_steps] for each in plan.gpus}
    # What is on the GPUs of an entry that is not whole is not known to be wrong.
    counted = {each.gpu.uuid for each in plan.gpus if each.target.where not in partial}
    for look in (_daemons, _tenants):
        try:
            for text, uuids in look(whole, plan, host, beside):
                for uuid in counted.intersection(uuids):
                    found[uuid].append(text)
        except PlanError as error:
            problems.append(error)
    told = tuple(Standing(each.gpu.uuid, each.target.sharing, tuple(found[each.gpu.uuid])) for each in plan.gpus)
    return told, tuple(problems)


def _targets(layout: Layout, host: Host, lost: bool) -> tuple[tuple[Target, ...], set[str], list[FleetError]]:
    """(what each GPU shall be, the entries of which a GPU is missing, why)."""
    entries, partial, problems = [], set(), []
    for entry in layout.entries:
        there = tuple(selector for selector in entry.selectors if any(matches(selector, gpu) for gpu in host.gpus))
        if lost and any(selector not in there or selector.kind in ("all", "model") for selector in entry.selectors):
            partial.add(entry.where)
        elif len(there) < len(entry.selectors):
            partial.add(entry.where)
            problems += _misses(entry, host.gpus)
        if there:
            entries.append(dataclasses.replace(entry, selectors=there))
    try:
        return targets(Layout(tuple(entries)), host.gpus), partial, problems
    except SelectorError as error:
        return (), partial, [*problems, error]


def _misses(entry: Entry, gpus: Sequence[Gpu]) -> list[FleetError]:
    found: list[FleetError] = []
    for position, selector in enumerate(entry.selectors):
        try:
            select(selector, gpus, "%s.gpus[%d]" % (entry.where, position))
        except SelectorError as error:
            found.append(error)
    return found


def _planned(gpu: Gpu, target: Target, ownership: Ownership, lost: bool) -> GpuPlan:
    if lost:
        # A GPU that is lost may keep observers from reading the settings of the others.
        settings = {name: None if gpu.setting(name) is None else value for name, value in target.settings.items()}
        target = dataclasses.replace(target, settings=settings)
    try:
        return mig_plan.plan_gpu(gpu, target, ownership)
    except PlanError:
        if ownership is mig_plan.ALL_OURS:
            raise
        # Somebody else's instances have the room: the GPU is not what the layout says, whoever is to mend it.
        return mig_plan.plan_gpu(gpu, target)


def _daemons(layout: Layout, plan: Plan, host: Host, beside: Beside) -> list[tuple[str, set[str]]]:
    """(what differs, on which GPUs). That a daemon is down is not the layout's affair, and is told apart."""
    if beside.daemons is None:
        return []
    wanted = mps_plan.wanted(layout, plan, host.driver_version, beside.daemons)
    steps = mps_plan.plan(wanted, beside.daemons, plan, host, adjustable).steps
    seen = {one.daemon.name: one for one in beside.daemons}
    found = []
    for step in steps:
        if isinstance(step, StopMps) and not step.forget:
            # It starts again, and that is told.
            continue
        one = seen.get(step.name)
        if isinstance(step, StartMps) and one is not None and _only_down(one, step.daemon, host):
            continue
        daemons = [one.daemon] if one is not None else []
        daemons += [] if isinstance(step, StopMps) else [step.daemon]
        places = {place.gpu_uuid for daemon in daemons for place in daemon.places}
        found.append(("mps %s: %s" % (step.name, step), places))
    return found


def _only_down(one: MpsSeen, wanted: MpsDaemon, host: Host) -> bool:
    as_wanted = one.daemon == wanted and one.devices == mps_plan.devices(wanted, host.gpus)
    return as_wanted and not one.outdated and not answers(one)


def _tenants(layout: Layout, plan: Plan, host: Host, beside: Beside) -> list[tuple[str, set[str]]]:
    if beside.tenants is None:
        return []
    wanted = vgpu_plan.wanted(layout, plan, beside.tenants, beside.dmem)
    steps = vgpu_plan.plan(wanted, beside.tenants, plan, host, lambda _name, _gpu: ()).steps
    seen = {one.tenant.name: one.tenant for one in beside.tenants}
    found = []
    for step in steps:
        tenants = [seen[step.name]] if step.name in seen else []
        tenants += [] if isinstance(step, RemoveTenant) else [step.tenant]
        found.append(("vgpu %s: %s" % (step.name, step), {uuid for tenant in tenants for uuid in tenant.gpus}))
    unheld = {uuid for each in wanted if each.tenant.provider != MPS for uuid in each.tenant.gpus}
    if unheld and not beside.library:
        found.append(("vgpu: install the library that holds tenants to their quotas", unheld))
    return found
