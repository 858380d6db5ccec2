# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the inventory says of workloads (`gpu_rightsize_workloads`), checked. Pure."""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
from typing import Any, Mapping, Sequence

from ...module_utils.sizes import SizeError, parse_size_bytes
from .model import ISOLATIONS, LATENCIES, MODES, RightsizeError, Wish

_EXAMPLE = '{match: "notebook-*", isolation: quota, latency: batch}'
_WORDS = {"mode": ("auto", *MODES), "isolation": ISOLATIONS, "latency": LATENCIES, "apart_on": ("gpu", "host")}
_TEXTS = ("match", "profile", "near", "apart")
_KEYS = (*_TEXTS, *_WORDS, "leave", "memory", "sm_percent")


def wishes(given: Any, host: str = "") -> tuple[Wish, ...]:
    """The list of one host. Raises RightsizeError, naming host and entry."""
    where = "gpu_rightsize_workloads%s" % (" of %s" % host if host else "")
    if not isinstance(given, (list, tuple)):
        raise RightsizeError(where, "%r is not a list" % (given,), "Write a list of entries as %s." % _EXAMPLE)
    return tuple(_wish("%s[%d]" % (where, number), row) for number, row in enumerate(given))


def _wish(where: str, row: Any) -> Wish:
    if not isinstance(row, Mapping):
        raise RightsizeError(where, "%r is not an entry" % (row,), "Write it as %s." % _EXAMPLE)
    for key in row:
        if key not in _KEYS:
            near = difflib.get_close_matches(str(key), _KEYS, 1)
            hint = "Did you mean %s? " % near[0] if near else ""
            raise RightsizeError(
                "%s.%s" % (where, key), "there is no such key", hint + "It has: %s." % ", ".join(_KEYS)
            )
    values: dict[str, Any] = {"where": where}
    for key, words in _WORDS.items():
        if key in row:
            if row[key] not in words:
                problem = "%r is none of its words" % (row[key],)
                raise RightsizeError("%s.%s" % (where, key), problem, "It is one of %s." % ", ".join(words))
            values[key] = row[key]
    for key in _TEXTS:
        if key in row:
            if not isinstance(row[key], str) or not row[key]:
                raise RightsizeError(
                    "%s.%s" % (where, key), "%r is no text" % (row[key],), "Write a text, or leave it out."
                )
            values[key] = row[key]
    if "leave" in row:
        if not isinstance(row["leave"], bool):
            problem = "%r is neither true nor false" % (row["leave"],)
            raise RightsizeError("%s.leave" % where, problem, "Write true or false.")
        values["leave"] = row["leave"]
    if "memory" in row:
        try:
            values["memory_bytes"] = parse_size_bytes(str(row["memory"]))
        except SizeError as error:
            raise RightsizeError("%s.memory" % where, error.problem, error.cure) from None
    if "sm_percent" in row:
        percent = row["sm_percent"]
        if isinstance(percent, bool) or not isinstance(percent, int) or not 1 <= percent <= 100:
            problem = "%r is no whole number from 1 to 100" % (percent,)
            raise RightsizeError("%s.sm_percent" % where, problem, "Write a percentage of the GPU's SMs, as 30.")
        values["sm_percent"] = percent
    if values.get("profile") and values.get("mode", "mig") not in ("auto", "mig"):
        problem = "a MIG profile is asked for, and the mode is %s" % values["mode"]
        raise RightsizeError("%s.profile" % where, problem, "Leave one of the two out.")
    return Wish(**values)


def wish_of(wishes: Sequence[Wish], names: Sequence[str]) -> Wish:
    """The first that matches one of the names (glob, upper and lower case differ); all defaults where none does."""
    return next(
        (wish for wish in wishes if any(fnmatch.fnmatchcase(name, wish.match) for name in names)),
        dataclasses.replace(Wish(), match=""),
    )
