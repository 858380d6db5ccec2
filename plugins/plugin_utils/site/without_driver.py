# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan a layout for a host without a working driver. Pure."""

from __future__ import annotations

from typing import Any, Sequence

from ...module_utils.change import planner
from ...module_utils.change.targets import targets
from ...module_utils.errors import FleetError, LayoutError, Problem, SelectorError
from ...module_utils.layout.types import Entry, Layout, Selector
from ...module_utils.plan import assumed
from ...module_utils.techniques.forms import parse_layout
from ...module_utils.techniques.registry import SERVING
from ..host_values import Reader
from ..techniques.registry import technique_of

#: Format of a host's list of GPUs on its PCI bus, with the maximum number of GPUs.
_ON_THE_BUS = [{"address": "pci_address", "device_id!": "pci_device"}, 64]


def plan(layout_data: Any, expected_gpus: Sequence[str], pci_gpus: Any) -> dict[str, Any]:
    """Return the plan as a mapping.

    The GPUs are the models in `expected_gpus`, or if it is empty, those on the host's PCI bus (`pci_gpus`). Keys of the
    result:

    `problems`: errors in the layout. `plan`: lines of the plan. `counts`: numbers of changes. `gpus`: number of GPUs.
    `checked`: whether the layout was checked against GPU models.
    """
    try:
        layout = parse_layout(layout_data)
        bus = Reader("this host").read("pci_gpus", pci_gpus, _ON_THE_BUS) if pci_gpus else []
        addresses = [gpu["address"].lower() for gpu in bus if gpu.get("address")]
        if addresses:
            _check_addresses(layout, addresses)
        if expected_gpus:
            gpus = assumed.assumed_gpus(expected_gpus)
        else:
            gpus = assumed.gpus_on_the_bus([(gpu.get("address", "").lower(), gpu["device_id"]) for gpu in bus])
        if not gpus:
            return _answer(checked=False)
        layout = _by_place(layout, by_address=not expected_gpus)
        gpus_plan = planner.plan(gpus, targets(layout, gpus))
        asked = [each for technique in SERVING for each in technique.service.asked(layout, gpus_plan, None)]
    except LayoutError as error:
        return _answer([str(problem) for problem in error.problems])
    except SelectorError as error:
        return _answer([str(problem) for problem in error.problems])
    except FleetError as error:
        return _answer([str(error)])
    lines = [*gpus_plan.lines(), *("%s: %s (%s)" % each[:3] for each in asked)]
    changed = {uuid for each in asked for uuid in each.gpus}
    changed.update(each.gpu.uuid for each in gpus_plan.gpus if each.steps)
    counts = {**gpus_plan.counts(), "gpus_changed": len(changed)}
    return {**_answer(), "plan": lines, "counts": counts, "gpus": len(gpus_plan.gpus)}


def _answer(problems: Sequence[str] = (), checked: bool = True) -> dict[str, Any]:
    return {"problems": list(problems), "plan": [], "counts": {}, "gpus": 0, "checked": checked}


def _check_addresses(layout: Layout, addresses: Sequence[str]) -> None:
    """Raise SelectorError if the layout has PCI addresses that are not on the bus."""
    cure = "The NVIDIA GPUs on the bus are at %s." % ", ".join(addresses)
    problems = [
        Problem("%s.gpus[%d]" % (entry.where, position), "this host has no GPU at %s" % selector.value, cure)
        for entry in layout.entries
        for position, selector in enumerate(entry.selectors)
        if selector.kind == "pci" and selector.value not in addresses
    ]
    if problems:
        first, *more = problems
        raise SelectorError(first.where, first.problem, first.cure, more)


def _by_place(layout: Layout, by_address: bool) -> Layout:
    """Return the layout without entries that need the driver to find their GPUs.

    Entries that select GPUs by UUID need the driver. So do entries that select by address, if the PCI addresses are
    unknown.
    """
    unknown = {"uuid"} if by_address else {"uuid", "pci"}
    return Layout(tuple(e for e in layout.entries if all(s.kind not in unknown for s in _selectors(e))))


def _selectors(entry: Entry) -> list[Selector]:
    """Return all GPU selectors of an entry and its tenants."""
    technique = technique_of(entry.sharing)
    return [*entry.selectors, *(technique.selectors(entry.part) if technique else ())]
