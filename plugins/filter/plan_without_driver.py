# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan a layout for a host whose driver does not answer yet, from the catalogue."""

from __future__ import annotations

DOCUMENTATION = r"""
name: plan_without_driver
short_description: Check a GPU layout against the catalogue of GPU models, before a driver is there
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Plans the layout as the module M(openfleet.gpu.layout) would on empty GPUs of the given models.
  - Returns problems rather than failing, so that the caller can name the host.
options:
  _input:
    description: The variable C(gpu_layout).
    type: raw
    required: true
  expected_gpus:
    description: Catalogue keys of the host's GPUs in index order, for example C(H100-80GB).
    type: list
    elements: str
    default: []
  pci_gpus:
    description: What the module M(openfleet.gpu.layout) found on the PCI bus; used where O(expected_gpus) is empty.
    type: list
    elements: dict
    default: []
"""

EXAMPLES = r"""
- name: Show what a layout would mean
  ansible.builtin.debug:
    msg: "{{ gpu_layout | openfleet.gpu.plan_without_driver(expected_gpus=['H100-80GB', 'H100-80GB']) }}"
"""

RETURN = r"""
_value:
  description:
    - C(problems), a list of messages, empty where the layout can be had;
      C(plan), one line per GPU; C(checked), whether the GPU models were known, and so whether anything but the form
      of the layout was checked.
  type: dict
"""

from ..module_utils import assumed, mig_plan, mps_plan, vgpu_plan
from ..module_utils.errors import FleetError, LayoutError
from ..module_utils.layout import parse_layout
from ..module_utils.layout_types import Layout
from ..module_utils.mps_steps import caps
from ..module_utils.selector import targets
from ..module_utils.vgpu_steps import size
from ..plugin_utils.host_values import Reader

#: What a host says of its PCI bus: at most so many GPUs.
_ON_THE_BUS = [{"device_id!": "pci_device"}, 64]


def plan_without_driver(layout_data, expected_gpus=(), pci_gpus=()):
    """See DOCUMENTATION."""
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
        plan = mig_plan.plan(gpus, targets(layout, gpus))
        daemons = [each.daemon for each in mps_plan.wanted(layout, plan, None)]
        # Whether the kernel bounds a GPU's memory is not known here, so it is no reason to refuse.
        tenants = vgpu_plan.wanted(layout, plan, dmem=frozenset(gpu.uuid for gpu in gpus))
    except LayoutError as error:
        return {"problems": [str(problem) for problem in error.problems], "plan": [], "checked": True}
    except FleetError as error:
        return {"problems": [str(error)], "plan": [], "checked": True}
    return {"problems": [], "plan": [*plan.lines(), *map(_daemon, daemons), *map(_tenant, tenants)], "checked": True}


def _daemon(daemon):
    return "mps %s: start (%s)" % (daemon.name, caps(daemon))


def _tenant(wanted):
    tenant = wanted.tenant
    return "vgpu %s: add (%s and %d %%)" % (tenant.name, size(tenant.memory_bytes), tenant.sm_percent)


def _by_place(layout):
    """The layout without entries that name GPUs by UUID or PCI address: only the driver can say which these are."""
    return Layout(tuple(e for e in layout.entries if all(s.kind not in ("uuid", "pci") for s in _selectors(e))))


def _selectors(entry):
    """All that name GPUs in it."""
    tenants = entry.vgpu.tenants if entry.vgpu is not None else ()
    return [*entry.selectors, *(tenant.gpu for tenant in tenants if tenant.gpu is not None)]


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        return {"plan_without_driver": plan_without_driver}
