# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""List the layout forms of all techniques, and read and write layouts.

This module imports no code that reads, plans or changes a host.
"""

from __future__ import annotations

from typing import Any

from ..layout.form import Form
from ..layout.parse import parse
from ..layout.selectors import selector_to_data
from ..layout.types import WITHOUT_PART, Entry, Layout
from .mig.form import MigForm
from .mps.form import MpsForm
from .time_slicing.form import TimeSlicingForm
from .vgpu.form import VgpuForm

#: Forms of techniques that share a whole GPU.
WHOLE: tuple[Form, ...] = (
    TimeSlicingForm(),
    MpsForm(),
    VgpuForm(),
)
#: Forms of techniques that also share instances of a GPU.
INSIDE = tuple(form for form in WHOLE if form.inside_mig)
#: All forms in the order of export: tenants, then instances, then whole GPUs.
FORMS: tuple[Form, ...] = (*WHOLE, MigForm(INSIDE))

#: Values of `sharing` for which the entry must have a key with the same name.
PARTS = tuple(sorted(form.key for form in FORMS))
#: All values of `sharing`.
SHARINGS = (*WITHOUT_PART, *PARTS)


def parse_layout(data: Any) -> Layout:
    """Return the layout in `data`. Raises LayoutError with all problems."""
    return parse(data, FORMS)


def layout_to_data(layout: Layout) -> list[dict[str, Any]]:
    """Return the canonical form of the layout for YAML and JSON.

    Values that equal a default are left out.
    """
    return [_entry_to_data(entry) for entry in layout.entries]


def _entry_to_data(entry: Entry) -> dict[str, Any]:
    selectors = [selector_to_data(selector) for selector in entry.selectors]
    data: dict[str, Any] = {"gpus": "all" if selectors == ["all"] else selectors, "sharing": entry.sharing}
    data.update({form.key: form.to_data(entry.part) for form in FORMS if form.key == entry.sharing})
    if entry.leases is not None:
        from ..layout.leases import to_data

        data["leases"] = to_data(entry.leases)
    return data
