# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Resolve a layout to the desired state of each GPU of a host.

Selectors are resolved to UUIDs each time a layout is applied, because GPU indexes may change at a reboot.
"""

from __future__ import annotations

from typing import Sequence

from ..errors import Problem, SelectorError
from ..layout.matching import select
from ..layout.types import Entry, Layout
from ..model import Device
from ..plan.gpu_plan import Target
from ..techniques.forms import FORMS
from ..techniques.registry import SETTINGS
from ..vendors.registry import divider_of, vendor_of


def resolved(layout: Layout, gpus: Sequence[Device]) -> dict[str, Entry]:
    """Return the layout entry for each selected GPU, by GPU UUID.

    Raises SelectorError with all problems: a selector matches nothing, or two selectors match the same GPU.
    """
    named: dict[str, tuple[str, Entry]] = {}
    problems: list[Problem] = []
    for entry in layout.entries:
        for position, selector in enumerate(entry.selectors):
            where = "%s.gpus[%d]" % (entry.where, position)
            try:
                selected = select(selector, gpus, where)
            except SelectorError as error:
                problems += error.problems
                continue
            for gpu in selected:
                if gpu.uuid in named:
                    problem = "%s is named here and by %s too" % (gpu.label, named[gpu.uuid][0])
                    problems.append(Problem(where, problem, "Name each GPU in one entry only."))
                else:
                    named[gpu.uuid] = (where, entry)
    if problems:
        first, *more = problems
        raise SelectorError(first.where, first.problem, first.cure, more)
    return {uuid: entry for uuid, (_where, entry) in named.items()}


def targets(layout: Layout, gpus: Sequence[Device]) -> tuple[Target, ...]:
    """Return a target for each GPU that the layout selects, in the order of the GPUs.

    Raises SelectorError like `resolved`.
    """
    entries = resolved(layout, gpus)
    return tuple(_target(gpu, entries[gpu.uuid]) for gpu in gpus if gpu.uuid in entries)


def asked(target: Target) -> str:
    """Return the desired state of a GPU as text."""
    for technique in SETTINGS:
        if technique.key == target.sharing:
            return "%s: %s" % (target, target.settings.get(technique.setting))
    return str(target)


def _target(gpu: Device, entry: Entry) -> Target:
    divider = divider_of(gpu)
    division = None
    if entry.sharing == divider.key:
        division = divider.wanted(entry.part)
    form = next((each for each in FORMS if each.key == entry.sharing), None)
    settings = {each.setting: each.wanted(entry.sharing, form) for each in vendor_of(gpu).settings}
    of_techniques = {each.setting: each.wanted(entry.part if each.key == entry.sharing else None) for each in SETTINGS}
    return Target(gpu.uuid, entry.where, entry.sharing, division, {**settings, **of_techniques}, entry.leases)
