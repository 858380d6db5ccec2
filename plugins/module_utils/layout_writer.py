# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a typed layout back to data."""

from __future__ import annotations

from typing import Any

from .layout_gpus import selector_to_data
from .layout_types import Entry, Layout, MigInstance
from .techniques.forms import FORMS


def layout_to_data(layout: Layout) -> list[dict[str, Any]]:
    """The layout in its canonical form, fit for YAML and JSON: what equals a default is left out."""
    return [_entry_to_data(entry) for entry in layout.entries]


def _entry_to_data(entry: Entry) -> dict[str, Any]:
    selectors = [selector_to_data(selector) for selector in entry.selectors]
    data: dict[str, Any] = {"gpus": "all" if selectors == ["all"] else selectors, "sharing": entry.sharing}
    if entry.mig is not None:
        data["mig"] = [_mig_instance_to_data(instance) for instance in entry.mig]
    return {**data, **_part_to_data(entry)}


def _part_to_data(shared: Entry | MigInstance) -> dict[str, Any]:
    """Return the part of the technique that shares it, by its key."""
    return {each.key: each.to_data(shared.part) for each in FORMS if each.key == shared.sharing}


def _mig_instance_to_data(instance: MigInstance) -> dict[str, Any]:
    data: dict[str, Any] = {"profile": instance.profile}
    if instance.count != 1:
        data["count"] = instance.count
    if instance.placement is not None:
        data["placement"] = instance.placement
    if instance.compute_instances:
        data["compute_instances"] = list(instance.compute_instances)
    return {**data, **_part_to_data(instance)}
