# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the new `gpu_layout` of a changed host, and plan the change. Pure."""

from __future__ import annotations

from typing import Any, Collection, Mapping, Sequence

from ...module_utils.change import planner
from ...module_utils.change.targets import targets
from ...module_utils.errors import PlanError
from ...module_utils.model import Gpu
from ...module_utils.plan.gpu_plan import Plan
from ...module_utils.techniques.forms import FORMS, layout_to_data, parse_layout
from ...module_utils.techniques.registry import SERVING
from .observed import HostToday, without_leases


def merged(today: HostToday, entries: Sequence[Mapping[str, Any]], changed: Collection[int]) -> list[dict[str, Any]]:
    """Return the current layout with new entries for the changed GPUs.

    The changed GPUs are removed from their current entries. An entry that loses some of its GPUs then lists the others
    by index. Raises PlanError.
    """
    if today.problem:
        raise PlanError("gpu_layout", today.problem)
    kept: list[dict[str, Any]] = []
    for entry, data in zip(today.layout.entries, layout_to_data(today.layout)):
        named = sorted(gpu.index for gpu in today.host.gpus if today.entries.get(gpu.uuid) is entry)
        stay = [index for index in named if index not in changed]
        if len(stay) == len(named):
            kept.append(data)
            continue
        if not stay:
            continue
        form = next((each for each in FORMS if each.key == entry.sharing), None)
        if form is not None and form.divides(entry.part):
            what = "its tenants may be on any of" if form.tenants(entry.part) else "its daemon serves all of"
            raise PlanError(
                entry.where,
                "%s its GPUs %s, and only some of them change" % (what, named),
                "Write an entry for each GPU, or exclude them all (leave: true).",
            )
        kept.append({**data, "gpus": stay})
    return [*kept, *(dict(entry) for entry in entries)]


def planned(layout: Any, gpus: Sequence[Gpu], driver_version: str | None) -> tuple[Plan, list[str]]:
    """Plan the change to a layout.

    Returns (plan for the GPUs, lines about the daemons and tenants of the layout).

    All instances count as the collection's. GPUs with leases are not planned. Raises the errors of applying the layout:
    LayoutError, SelectorError and PlanError.
    """
    parsed = parse_layout(layout)
    targets(parsed, gpus)
    plan = planner.plan(gpus, targets(without_leases(parsed), gpus))
    asked = [each for technique in SERVING for each in technique.service.asked(parsed, plan, driver_version or None)]
    return plan, ["%s: %s" % (each.name, each.limits) for each in asked]
