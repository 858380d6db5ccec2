# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Determine what a layout needs on its host in addition to GPUs. Pure."""

from __future__ import annotations

from typing import Any, Iterator

from ...module_utils.errors import LayoutError
from ...module_utils.layout.form import Form
from ...module_utils.layout.types import Layout
from ...module_utils.techniques.forms import FORMS, parse_layout

#: The key that limits leases of quotas (`Form.lease_limit`).
QUOTA_LIMIT = "most"


def of_layout(layout_data: Any) -> dict[str, Any]:
    """Return the needs of a layout.

    `gpus`: true if the layout has entries for GPUs.
    `cdi`: true if it has CDI devices.
    `tenants`: names of the tenants.
    `quotas`: true if it has tenants or leases of quotas, which need the limiter.
    `leases`: true if it has leases, which a service of the host creates.
    `lenders`: who grants its leases (key `by` in `leases`), sorted.
    `problems`: errors in the layout.

    If the layout has errors, `gpus` is true and all other needs are empty. A run can then still remove the collection from
    the host.
    """
    try:
        layout = parse_layout(layout_data)
    except LayoutError as error:
        problems = [str(problem) for problem in error.problems]
        return {
            "gpus": True,
            "cdi": False,
            "tenants": [],
            "quotas": False,
            "leases": False,
            "lenders": [],
            "problems": problems,
        }
    parts = list(_parts(layout))
    tenants = [name for form, part in parts for name in form.tenants(part)]
    granted = [entry for entry in layout.entries if entry.leases is not None]
    limits = {form.key: form.lease_limit for form in FORMS}
    return {
        "gpus": bool(layout.entries),
        "cdi": any(form.cdi_devices for form, _part in parts),
        "tenants": tenants,
        "quotas": bool(tenants) or any(limits.get(entry.sharing) == QUOTA_LIMIT for entry in granted),
        "leases": bool(granted),
        "lenders": sorted({entry.leases.by for entry in granted if entry.leases is not None}),
        "problems": [],
    }


def _parts(layout: Layout) -> Iterator[tuple[Form, Any]]:
    """Yield (form, part) for each part of an entry or of a MIG instance."""
    forms = {form.key: form for form in FORMS}
    for entry in layout.entries:
        for each in (entry, *entry.instances):
            if each.sharing in forms:
                yield forms[each.sharing], each.part
