# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans a layout for a host on which no driver answers yet. Pure."""

from __future__ import annotations

from typing import Any, Sequence

from ...module_utils import assumed, mig_plan, vgpu_plan
from ...module_utils.errors import FleetError, LayoutError
from ...module_utils.layout import parse_layout
from ...module_utils.layout_types import Entry, Layout, Selector
from ...module_utils.targets import targets
from ...module_utils.techniques.mps import plan as mps_plan
from ...module_utils.techniques.mps.model import MpsDaemon
from ...module_utils.techniques.mps.steps import caps
from ...module_utils.vgpu_steps import size
from ..host_values import Reader

#: What a host says of its PCI bus: at most so many GPUs.
_ON_THE_BUS = [{"device_id!": "pci_device"}, 64]


def plan(layout_data: Any, expected_gpus: Sequence[str], pci_gpus: Any) -> dict[str, Any]:
    """Return the `problems` and the `plan` as lines, and whether the layout could be `checked` at all.

    The GPUs are those of the models in `expected_gpus`, else what the host says of its PCI bus (`pci_gpus`).
    """
    try:
        layout = parse_layout(layout_data)
        if expected_gpus:
            gpus = assumed.assumed_gpus(expected_gpus)
        else:
            there = Reader("this host").read("pci_gpus", pci_gpus, _ON_THE_BUS)
            gpus = assumed.gpus_on_the_bus([gpu["device_id"] for gpu in there])
        if not gpus:
            return {"problems": [], "plan": [], "checked": False}
        layout = _by_place(layout)
        gpus_plan = mig_plan.plan(gpus, targets(layout, gpus))
        daemons = [each.daemon for each in mps_plan.wanted(layout, gpus_plan, None)]
        # Whether the kernel bounds a GPU's memory is not known here, so it is no reason to refuse.
        tenants = vgpu_plan.wanted(layout, gpus_plan, dmem=frozenset(gpu.uuid for gpu in gpus))
    except LayoutError as error:
        return {"problems": [str(problem) for problem in error.problems], "plan": [], "checked": True}
    except FleetError as error:
        return {"problems": [str(error)], "plan": [], "checked": True}
    return {
        "problems": [],
        "plan": [*gpus_plan.lines(), *map(_daemon, daemons), *map(_tenant, tenants)],
        "checked": True,
    }


def _daemon(daemon: MpsDaemon) -> str:
    return "mps %s: start (%s)" % (daemon.name, caps(daemon))


def _tenant(wanted: vgpu_plan.WantedTenant) -> str:
    tenant = wanted.tenant
    return "vgpu %s: add (%s and %d %%)" % (tenant.name, size(tenant.memory_bytes), tenant.sm_percent)


def _by_place(layout: Layout) -> Layout:
    """The layout without entries that name GPUs by UUID or PCI address: only the driver can say which these are."""
    return Layout(tuple(e for e in layout.entries if all(s.kind not in ("uuid", "pci") for s in _selectors(e))))


def _selectors(entry: Entry) -> list[Selector]:
    """Return all that name GPUs in it."""
    tenants = entry.vgpu.tenants if entry.vgpu is not None else ()
    return [*entry.selectors, *(tenant.gpu for tenant in tenants if tenant.gpu is not None)]
