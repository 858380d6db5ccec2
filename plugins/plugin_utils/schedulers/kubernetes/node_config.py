# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Merge nodes' entries into the configuration of HAMi's or Volcano's plugin. Pure.

Both plugins read the file config.json from their ConfigMap when they start: {"nodeconfig": [{"name": ..., ...}]}. Go
reads the keys without regard to case. HAMi 2.10: charts/hami/values.yaml, `devicePlugin.nodeConfiguration.config`, and
DevicePluginConfigs in pkg/device/nvidia/device.go. Volcano: doc/config.md of its plugin, "Node Configs".
"""

from __future__ import annotations

import json
from typing import Any, Mapping

CONFIG_KEY = "config.json"
EMPTY = '{"nodeconfig": []}\n'
_NODES = "nodeconfig"


class UnreadableError(Exception):
    """The text is not a configuration of the device plugin."""


def merged(present: str, entries: Mapping[str, Mapping[str, Any] | None]) -> str:
    """Return config.json with these entries, or the same text if nothing differs.

    `entries` has entries by node name. None removes an entry. Entries of other nodes, other keys of the file, and keys
    of an entry that the new entry does not set stay. Raises UnreadableError.
    """
    data = _read(present)
    (key,) = [name for name in data if name.lower() == _NODES] or [_NODES]
    rows: list[dict[str, Any]] = []
    waiting = dict(entries)
    for row in data.get(key) or []:
        name = _name(row)
        if name not in entries:
            rows.append(row)
            continue
        # Replace all entries with the node's name by one, because the plugin applies all of them.
        desired = waiting.pop(name, None)
        if desired is not None:
            rows.append(_with(row, desired))
    rows += [dict(desired) for desired in waiting.values() if desired is not None]
    result = {**data, key: rows}
    return present if result == data else json.dumps(result, indent=2) + "\n"


def _read(present: str) -> dict[str, Any]:
    try:
        data = json.loads(present)
    except ValueError as error:
        raise UnreadableError("it is not JSON (%s)" % error) from None
    if not isinstance(data, dict):
        raise UnreadableError("it is not a mapping")
    keys = [name for name in data if name.lower() == _NODES]
    if len(keys) > 1:
        raise UnreadableError("it has the key nodeconfig twice")
    rows = data[keys[0]] if keys else []
    if rows is not None and not (isinstance(rows, list) and all(isinstance(row, dict) for row in rows)):
        raise UnreadableError("nodeconfig is not a list of mappings")
    return data


def _name(row: Mapping[str, Any]) -> str:
    return next((str(value) for key, value in row.items() if key.lower() == "name"), "")


def _with(row: Mapping[str, Any], desired: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in row.items() if key.lower() not in desired or key in desired}
    return {**kept, **desired}
