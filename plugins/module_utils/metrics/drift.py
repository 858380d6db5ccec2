# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How far a host's GPUs are from its layout: pure, and as lenient as a look at a host with a broken GPU has to be.

What a run would do is what differs. Unlike a run, this stops at nothing: what cannot be compared on one GPU is a problem,
and the others are reported.
"""

from __future__ import annotations

import dataclasses
from typing import Sequence

from ..change import planner
from ..change.targets import targets
from ..errors import FleetError, PlanError, SelectorError
from ..frozen import frozen
from ..gpu_plan import GpuPlan, Plan, Target
from ..layout.matching import matches, select
from ..layout.types import Entry, Layout
from ..model import Gpu, Host
from ..ownership import Ownership
from ..services import Service


@frozen
class Standing:
    """A GPU that the layout names: how it shall be shared, and in what it differs from that, in the words of plans."""

    gpu_uuid: str
    sharing: str
    differences: tuple[str, ...] = ()


def compare(
    layout: Layout, host: Host, ownership: Ownership, services: Sequence[Service], lost: bool = False
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
    found = {each.gpu.uuid: [str(step) for step in each.shown_steps] for each in plan.gpus}
    # What is on the GPUs of an entry that is not whole is not known to be wrong.
    counted = {each.gpu.uuid for each in plan.gpus if each.target.where not in partial}
    for service in services:
        try:
            for text, uuids in service.drift(whole, plan, host):
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
        return planner.plan_gpu(gpu, target, ownership)
    except PlanError:
        if ownership is planner.ALL_OURS:
            raise
        # Other instances take the room: the GPU is not what the layout says.
        return planner.plan_gpu(gpu, target)
