# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Format the plans of all hosts for site.yml. Pure."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from ...module_utils.model import short_label
from .. import host_results
from ..host_values import MOST_ENTRIES, HostValueError

#: Key of hosts without changes. Its spaces cannot be in a host's name.
UNCHANGED = "nothing to do"
#: Maximum number of hosts without changes, of lines about blocking workloads, and of holders in such a line.
_NAMED = 20
_NO_DRIVER = "(no NVIDIA driver yet%s)"


def plans(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return each host's lines of the plan.

    Hosts without changes share the entry UNCHANGED. `results` has results of openfleet.gpu.layout in check mode. For an
    unreadable result, the reason replaces the lines.
    """
    written: dict[str, Any] = {}
    unchanged = []
    for host, result in results.items():
        try:
            lines = _lines(host, result if isinstance(result, Mapping) else {})
        except HostValueError as error:
            lines = [str(error)]
        if lines:
            written[host] = lines
        else:
            unchanged.append(host)
    if unchanged:
        written[UNCHANGED] = ", ".join(_first(unchanged))
    return written


def _lines(host: str, result: Mapping[str, Any]) -> list[str]:
    """Return the lines of a host's plan.

    Without changes, returns only lines about unmanaged GPUs. Raises HostValueError if the result is invalid.
    """
    read = host_results.plan(host, result)
    if not read.get("driver_present"):
        forecast = read.get("forecast") or {}
        if forecast.get("checked"):
            return [_NO_DRIVER % "; checked against the model catalogue", *(forecast.get("plan") or [])]
        return [_NO_DRIVER % "", read.get("msg") or "no plan"]
    lines, busy = read.get("plan_lines") or [], read.get("busy") or []
    # A line without a UUID is about a changed daemon or tenant.
    changes = busy or (read.get("counts") or {}).get("gpus_changed")
    if not changes and all(line.get("uuid") for line in lines):
        # Every run reports a GPU that lost its entry, until it is released or has an entry again.
        lines = [line for line in lines if line.get("unmanaged")]
    held = ["%s is in use by %s" % (each["what"], ", ".join(_first(each["who"]))) for each in busy]
    return [*map(_line, lines), *map("blocking: {}".format, _first(held))]


def _line(line: Mapping[str, Any]) -> str:
    index, uuid = line.get("index"), line.get("uuid")
    return line["text"] if index is None or uuid is None else "%s: %s" % (short_label(index, uuid), line["text"])


def _first(texts: Sequence[str]) -> list[str]:
    """Return the first _NAMED texts, and a text with the number of others."""
    left = len(texts) - _NAMED
    # The list may have been shortened when it was read, so there may be more.
    more = ["%s%d more" % ("at least " if len(texts) == MOST_ENTRIES else "", left)] if left > 0 else []
    return [*texts[:_NAMED], *more]
