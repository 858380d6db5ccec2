# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Add the plugin `deviceshare` to Volcano's scheduler, or remove it. Pure.

https://github.com/volcano-sh/volcano, docs/user-guide/how_to_use_volcano_vgpu.md and pkg/scheduler/plugins/deviceshare.

The text is edited by lines, to keep comments and the order of other settings. A comment marks the added lines. Then the
text is parsed again, and the edit is refused if anything but the plugin differs.
"""

from __future__ import annotations

import copy
from typing import Any

import yaml

from ....module_utils.errors import FleetError

#: Key of the ConfigMap.
KEY = "volcano-scheduler.conf"
PLUGIN, ENABLE = "deviceshare", "deviceshare.VGPUEnable"
# Volcano's scheduler exits if one of these is true together with ENABLE.
_OLD = ("deviceshare.GPUSharingEnable", "deviceshare.GPUNumberEnable")
_MARK = "  # openfleet.gpu"
_CURE = "Add {name: deviceshare, arguments: {deviceshare.VGPUEnable: true}} to its last tier by hand."


def with_deviceshare(text: str, where: str) -> str:
    """Return the configuration with `deviceshare`.

    Returns the same text if the plugin is already enabled. `where` is the place for errors. Raises FleetError if the
    configuration cannot be read or edited, or contradicts the plugin.
    """
    data = _parsed(text, where)
    plugins = [plugin for tier in data["tiers"] for plugin in tier["plugins"]]
    current = next((plugin for plugin in plugins if plugin["name"] == PLUGIN), None)
    if current is None:
        expected = copy.deepcopy(data)
        expected["tiers"][-1]["plugins"].append({"name": PLUGIN, "arguments": {ENABLE: True}})
        return _checked(_append(text), expected, where)
    arguments = current.get("arguments") or {}
    old = [name for name in _OLD if arguments.get(name) is True]
    if old:
        cure = "Remove it, because Volcano's scheduler ends if both are enabled."
        raise FleetError(where, "deviceshare has %s, which contradicts %s" % (old[0], ENABLE), cure)
    if arguments.get(ENABLE) is True:
        return text
    problem = "deviceshare has no %s: true" % ENABLE
    raise FleetError(where, problem, "Set it in the arguments of deviceshare, or remove deviceshare.")


def without_deviceshare(text: str) -> str:
    """Return the configuration without the lines that `with_deviceshare` added."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.rstrip().endswith(_MARK))


def _parsed(text: str, where: str) -> Any:
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = " in line %d" % (mark.line + 1) if mark else ""
        raise FleetError(where, "it is not valid YAML%s" % place, "Correct it.") from None
    tiers = data.get("tiers") if isinstance(data, dict) else None
    if not (isinstance(tiers, list) and tiers and all(map(_is_tier, tiers))):
        raise FleetError(where, "it has no tiers with plugins", "Compare it with the default of Volcano's chart.")
    return data


def _is_tier(tier: Any) -> bool:
    plugins = tier.get("plugins") if isinstance(tier, dict) else None
    return (
        isinstance(plugins, list)
        and bool(plugins)
        and all(
            isinstance(plugin, dict)
            and isinstance(plugin.get("name"), str)
            and isinstance(plugin.get("arguments") or {}, dict)
            for plugin in plugins
        )
    )


def _append(text: str) -> str:
    """Return the text with `deviceshare` after the last plugin of the last tier."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    plugins = _value(_value(root, "tiers").value[-1], "plugins")
    last = plugins.value[-1]
    lines = text.splitlines(keepends=True)
    # A block ends at the start of the next token, which may be several comments later.
    after = _last_line(last) + 1
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    dash = " " * plugins.start_mark.column
    added = ["- name: %s" % PLUGIN, "  arguments:", "    %s: true" % ENABLE]
    return "".join([*lines[:after], *(dash + line + _MARK + "\n" for line in added), *lines[after:]])


def _value(node: Any, key: str) -> Any:
    return next(value for name, value in node.value if name.value == key)


def _last_line(node: Any) -> int:
    """Return the number of the last line of a node's content, from 0."""
    if isinstance(node, yaml.ScalarNode) or node.flow_style or not node.value:
        end = node.end_mark
        line: int = end.line
        # A block scalar ends at the start of the line after it.
        return line - 1 if end.column == 0 and line > node.start_mark.line else line
    last = node.value[-1]
    return _last_line(last[1] if isinstance(last, tuple) else last)


def _checked(text: str, expected: Any, where: str) -> str:
    try:
        same = yaml.safe_load(text) == expected
    except yaml.YAMLError:
        same = False
    if not same:
        raise FleetError(where, "deviceshare cannot be added without other changes", _CURE)
    return text
