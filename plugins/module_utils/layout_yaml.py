# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpu_layout as YAML, as a person would write it: canonical, so that equal layouts read alike.

A writer of its own, for a host needs no PyYAML. It writes what `layout_to_data` gives, nothing else.
"""

from __future__ import annotations

import json
import re
from typing import Any

#: Words that are text in YAML 1.1 and 1.2 without quotes: names, profiles and sizes. Numbers never match.
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_.+-]*|([0-9]+c\.)?[0-9]+g\.[0-9]+gb[a-z.+-]*|[0-9]+[MG]iB")
#: Words that YAML 1.1 reads as something else.
_RESERVED = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


def layout_yaml(data: list[dict[str, Any]]) -> str:
    """The variable gpu_layout with this value, ending in a line break. Entries are blocks, what is in them is short."""
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
    if key == "mig" and value:
        return ["  %smig:" % mark, *("      - %s" % flow(instance) for instance in value)]
    if key == "vgpu":
        lines = ["  %svgpu:" % mark]
        lines += ["      %s: %s" % (name, flow(part)) for name, part in value.items() if name != "tenants"]
        return [*lines, "      tenants:", *("        - %s" % flow(tenant) for tenant in value["tenants"])]
    return ["  %s%s: %s" % (mark, key, flow(value))]


def flow(value: Any) -> str:
    """The value in one line."""
    if isinstance(value, dict):
        return "{%s}" % ", ".join("%s: %s" % (key, flow(item)) for key, item in value.items())
    if isinstance(value, list):
        return "[%s]" % ", ".join(flow(item) for item in value)
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _RESERVED:
        return value
    if isinstance(value, str):
        return '"%s"' % "".join(map(_escaped, value))
    # JSON's numbers and booleans are YAML too.
    return json.dumps(value)


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    return character if " " <= character <= "~" else "\\U%08x" % ord(character)
