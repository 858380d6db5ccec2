# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a typed layout back to data."""

from __future__ import annotations

from typing import Any

from .layout_gpus import selector_to_data
from .layout_types import Entry, Layout
from .techniques.forms import FORMS


def layout_to_data(layout: Layout) -> list[dict[str, Any]]:
    """The layout in its canonical form, fit for YAML and JSON: what equals a default is left out."""
    return [_entry_to_data(entry) for entry in layout.entries]


def _entry_to_data(entry: Entry) -> dict[str, Any]:
    selectors = [selector_to_data(selector) for selector in entry.selectors]
    data: dict[str, Any] = {"gpus": "all" if selectors == ["all"] else selectors, "sharing": entry.sharing}
    return {**data, **{form.key: form.to_data(entry.part) for form in FORMS if form.key == entry.sharing}}
