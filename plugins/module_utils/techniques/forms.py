# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""List how sharing techniques are written in layouts, and read and write layouts with all of them.

Imports nothing that looks at a host, plans or changes it.
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

#: Those of techniques that share a whole GPU.
WHOLE: tuple[Form, ...] = (
    TimeSlicingForm(),
    MpsForm(),
    VgpuForm(),
)
#: Those of techniques that share instances of a GPU too.
INSIDE = tuple(form for form in WHOLE if form.inside_mig)
#: Tenants are described before instances are, and instances before the GPU as a whole.
FORMS: tuple[Form, ...] = (*WHOLE, MigForm(INSIDE))

#: The ways of sharing that have a part of their own name in the entry.
PARTS = tuple(sorted(form.key for form in FORMS))
#: All ways of sharing.
SHARINGS = (*WITHOUT_PART, *PARTS)


def parse_layout(data: Any) -> Layout:
    """Return the layout that `data` describes. Raises LayoutError with all problems found."""
    return parse(data, FORMS)


def layout_to_data(layout: Layout) -> list[dict[str, Any]]:
    """Return the layout in its canonical form, fit for YAML and JSON: what equals a default is left out."""
    return [_entry_to_data(entry) for entry in layout.entries]


def _entry_to_data(entry: Entry) -> dict[str, Any]:
    selectors = [selector_to_data(selector) for selector in entry.selectors]
    data: dict[str, Any] = {"gpus": "all" if selectors == ["all"] else selectors, "sharing": entry.sharing}
    return {**data, **{form.key: form.to_data(entry.part) for form in FORMS if form.key == entry.sharing}}
