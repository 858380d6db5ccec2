# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Merge the configuration of nodes into that of Volcano's vGPU plugin. Pure.

doc/config.md of the plugin (backend.py), "Node Configs". One JSON text lists all nodes.
"""

from __future__ import annotations

import json
from typing import Any, Collection, Mapping

from ....module_utils.errors import FleetError

#: Key of the ConfigMap.
KEY = "config.json"
_LIST = "nodeconfig"


def merge(text: str, entries: Mapping[str, Mapping[str, Any]], removed: Collection[str], where: str) -> str:
    """Return the text with these entries, and without the removed nodes.

    `entries` are mapped by node name. All other entries are kept. If nothing differs, returns the same text. `where` is the
    place for errors.
    Raises FleetError if the text is not a configuration.
    """
    data: Any
    try:
        data = json.loads(text) if text.strip() else {_LIST: []}
    except ValueError:
        data = None
    rows = data.get(_LIST) if isinstance(data, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise FleetError(where, "it is not a configuration of Volcano's vGPU plugin", 'Write {"nodeconfig": []}.')
    current = {row.get("name") for row in rows}
    merged = [entries.get(row.get("name"), row) for row in rows if row.get("name") not in removed]
    merged += [entries[name] for name in sorted(entries) if name not in current]
    if merged == rows:
        return text
    return json.dumps({**data, _LIST: merged}, indent=2) + "\n"
