# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Format the plans of all hosts for site.yml. Pure."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from ...module_utils.model import short_label
from .. import host_results
from ..host_values import MOST_ENTRIES, HostValueError

#: Key of the hosts without changes. It contains spaces, so it cannot be the name of a host.
UNCHANGED = "nothing to do"
#: Maximum number of hosts without changes that are listed. The same number limits the lines about blocking workloads,
#: and the holders in such a line.
_NAMED = 20
_NO_DRIVER = "(no NVIDIA driver yet%s)"


def plans(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return the lines of the plan for each host.

    Hosts without changes share the entry UNCHANGED.

    `results` has the results of the module openfleet.gpu.layout in check mode. If a host's result is not readable, the
    host has the reason instead of the lines.
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

    If nothing changes, only the lines for unmanaged GPUs are returned. Raises HostValueError if the result is invalid.
    """
    read = host_results.plan(host, result)
    if not read.get("driver_present"):
        forecast = read.get("forecast") or {}
        if forecast.get("checked"):
            return [_NO_DRIVER % "; checked against the model catalogue", *(forecast.get("plan") or [])]
        return [_NO_DRIVER % "", read.get("msg") or "no plan"]
    lines, busy = read.get("plan_lines") or [], read.get("busy") or []
    # A line without a UUID is about a daemon or tenant that changes.
    changes = busy or (read.get("counts") or {}).get("gpus_changed")
    if not changes and all(line.get("uuid") for line in lines):
        # Report a GPU that lost its entry in every run, until the GPU is released or has an entry again.
        lines = [line for line in lines if line.get("unmanaged")]
    held = ["%s is in use by %s" % (each["what"], ", ".join(_first(each["who"]))) for each in busy]
    return [*map(_line, lines), *map("blocking: {}".format, _first(held))]


def _line(line: Mapping[str, Any]) -> str:
    index, uuid = line.get("index"), line.get("uuid")
    return line["text"] if index is None or uuid is None else "%s: %s" % (short_label(index, uuid), line["text"])


def _first(texts: Sequence[str]) -> list[str]:
    """Return the first _NAMED texts, and a text with the number of remaining texts."""
    left = len(texts) - _NAMED
    # The list may have been shortened when it was read, so the actual number can be higher.
    more = ["%s%d more" % ("at least " if len(texts) == MOST_ENTRIES else "", left)] if left > 0 else []
    return [*texts[:_NAMED], *more]
