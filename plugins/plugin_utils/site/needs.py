# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find out what a layout needs on its host apart from GPUs. Pure."""

from __future__ import annotations

from typing import Any, Iterator

from ...module_utils.errors import LayoutError
from ...module_utils.layout.form import Form
from ...module_utils.layout.types import Layout
from ...module_utils.techniques.forms import FORMS, parse_layout


def of_layout(layout_data: Any) -> dict[str, Any]:
    """Return whether the layout names `gpus` and has `cdi` devices, its `tenants` by name, and its `problems`.

    A layout with problems needs nothing, so that it cannot block the removal of the collection.
    """
    try:
        layout = parse_layout(layout_data)
    except LayoutError as error:
        return {"gpus": True, "cdi": False, "tenants": [], "problems": [str(problem) for problem in error.problems]}
    parts = list(_parts(layout))
    return {
        "gpus": bool(layout.entries),
        "cdi": any(form.cdi_devices for form, _part in parts),
        "tenants": [name for form, part in parts for name in form.tenants(part)],
        "problems": [],
    }


def _parts(layout: Layout) -> Iterator[tuple[Form, Any]]:
    """Return each part of an entry or of a MIG instance, with its form."""
    forms = {form.key: form for form in FORMS}
    for entry in layout.entries:
        for each in (entry, *entry.instances):
            if each.sharing in forms:
                yield forms[each.sharing], each.part
