# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write gpu_layout as readable, canonical YAML.

Equal layouts give equal text. The module has its own writer, because hosts may lack PyYAML. It only writes the data
from `layout_to_data`.
"""

from __future__ import annotations

import json
import re
from typing import Any

#: Words that YAML 1.1 and 1.2 read as text without quotes: names, profiles and sizes, but no numbers.
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_.+-]*|([0-9]+c\.)?[0-9]+g\.[0-9]+gb[a-z.+-]*|[0-9]+[MG]iB")
#: Words that YAML 1.1 does not read as text.
_RESERVED = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


def layout_yaml(data: list[dict[str, Any]]) -> str:
    """Return the variable gpu_layout with this value, ending in a line break.

    Each entry is a block. Short values in it are written in one line.
    """
    if not data:
        return "gpu_layout: []\n"
    lines = ["gpu_layout:"]
    for entry in data:
        mark = "- "
        for key, value in entry.items():
            lines += _field(mark, key, value)
            mark = "  "
    return "\n".join(lines) + "\n"


def _field(mark: str, key: str, value: Any) -> list[str]:
    lines = _part("      ", value) if key != "gpus" else []
    return ["  %s%s:" % (mark, key), *lines] if lines else ["  %s%s: %s" % (mark, key, flow(value))]


def _part(indent: str, value: Any) -> list[str]:
    """Return the lines for a list of mappings, or for a mapping with such a list.

    Returns None if one line is enough.
    """
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return ["%s- %s" % (indent, flow(item)) for item in value]
    if not isinstance(value, dict):
        return []
    parts = {key: _part(indent + "  ", part) for key, part in value.items()}
    if not any(parts.values()):
        return []
    return [
        line
        for key, lines in parts.items()
        for line in (["%s%s:" % (indent, key), *lines] if lines else ["%s%s: %s" % (indent, key, flow(value[key]))])
    ]


def flow(value: Any) -> str:
    """Return the value in one line."""
    if isinstance(value, dict):
        return "{%s}" % ", ".join("%s: %s" % (key, flow(item)) for key, item in value.items())
    if isinstance(value, list):
        return "[%s]" % ", ".join(flow(item) for item in value)
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _RESERVED:
        return value
    if isinstance(value, str):
        return '"%s"' % "".join(map(_escaped, value))
    # JSON's numbers and booleans are valid YAML.
    return json.dumps(value)


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    return character if " " <= character <= "~" else "\\U%08x" % ord(character)
