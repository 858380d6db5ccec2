# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare a host's GPUs with its layout, with pure functions.

The differences are the steps of a plan. Unlike a run, the comparison continues after an error: a GPU that cannot be
compared is reported as a problem, and the other GPUs are compared.
"""

from __future__ import annotations

import dataclasses
from typing import Sequence

from ..change import planner
from ..change.targets import targets
from ..errors import FleetError, PlanError, SelectorError
from ..frozen import frozen
from ..layout.matching import matches, select
from ..layout.types import Entry, Layout
from ..model import Gpu, Host
from ..plan.gpu_plan import GpuPlan, Plan, Target
from ..plan.ownership import Ownership
from ..plan.services import Service


@frozen
class GpuDrift:
    """A GPU in the layout: its desired sharing, and its differences as steps.

    `pool` is its entry if the entry offers leases, or None.
    """

    gpu_uuid: str
    sharing: str
    differences: tuple[str, ...] = ()
    pool: str | None = None


def compare(
    layout: Layout, host: Host, ownership: Ownership, services: Sequence[Service], lost: bool = False
) -> tuple[tuple[GpuDrift, ...], tuple[FleetError, ...]]:
    """Return the drift of each GPU in the layout, and the problems.

    Each GPU that cannot be compared is a problem. `lost` is true if a GPU does not answer and is missing from `host`. A
    GPU that is missing from an entry is then no problem, and services that span this entry's GPUs are not compared.
    """
    desired, partial, problems = _targets(layout, host, lost)
    by_uuid = {gpu.uuid: gpu for gpu in host.gpus}
    plans = []
    for target in desired:
        try:
            plans.append(_planned(by_uuid[target.gpu_uuid], target, ownership, lost))
        except PlanError as error:
            problems.append(error)
            partial.add(target.where)
    plan = Plan(tuple(sorted(plans, key=lambda each: each.gpu.index)))
    whole = Layout(tuple(entry for entry in layout.entries if entry.where not in partial))
    differences = {each.gpu.uuid: [str(step) for step in each.shown_steps] for each in plan.gpus}
    # Services on the GPUs of an incomplete entry cannot be compared.
    comparable = {each.gpu.uuid for each in plan.gpus if each.target.where not in partial}
    for service in services:
        try:
            for text, uuids in service.drift(whole, plan, host):
                for uuid in comparable.intersection(uuids):
                    differences[uuid].append(text)
        except PlanError as error:
            problems.append(error)
    drift = [
        GpuDrift(
            *(each.gpu.uuid, each.target.sharing, tuple(differences[each.gpu.uuid])),
            pool=None if each.target.leases is None else each.target.where,
        )
        for each in plan.gpus
    ]
    return tuple(drift), tuple(problems)


def _targets(layout: Layout, host: Host, lost: bool) -> tuple[tuple[Target, ...], set[str], list[FleetError]]:
    """Return the GPUs' targets, the entries that lack a GPU, and the problems."""
    entries, partial, problems = [], set(), []
    for entry in layout.entries:
        present = tuple(selector for selector in entry.selectors if any(matches(selector, gpu) for gpu in host.gpus))
        if lost and any(selector not in present or selector.kind in ("all", "model") for selector in entry.selectors):
            partial.add(entry.where)
        elif len(present) < len(entry.selectors):
            partial.add(entry.where)
            problems += _selector_errors(entry, host.gpus)
        if present:
            entries.append(dataclasses.replace(entry, selectors=present))
    try:
        return targets(Layout(tuple(entries)), host.gpus), partial, problems
    except SelectorError as error:
        return (), partial, [*problems, error]


def _selector_errors(entry: Entry, gpus: Sequence[Gpu]) -> list[FleetError]:
    errors: list[FleetError] = []
    for position, selector in enumerate(entry.selectors):
        try:
            select(selector, gpus, "%s.gpus[%d]" % (entry.where, position))
        except SelectorError as error:
            errors.append(error)
    return errors


def _planned(gpu: Gpu, target: Target, ownership: Ownership, lost: bool) -> GpuPlan:
    if lost:
        # A lost GPU may prevent nvidia-smi and others from reading other GPUs' settings.
        settings = {name: None if gpu.setting(name) is None else value for name, value in target.settings.items()}
        target = dataclasses.replace(target, settings=settings)
    try:
        return planner.plan_gpu(gpu, target, ownership)
    except PlanError:
        if ownership.policy == "remove":
            raise
        # Other owners' instances occupy the space, so the GPU differs from the layout.
        return planner.plan_gpu(gpu, target, dataclasses.replace(ownership, policy="remove"))
