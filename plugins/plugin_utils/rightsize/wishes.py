# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read and check the workload settings (`gpu_rightsize_workloads`). Pure."""

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
    """Read a host's settings.

    Raises RightsizeError, which names the host and the entry.
    """
    where = "gpu_rightsize_workloads%s" % (" of %s" % host if host else "")
    if not isinstance(given, (list, tuple)):
        raise RightsizeError(where, "%r is not a list" % (given,), "Write a list of entries like %s." % _EXAMPLE)
    return tuple(_wish("%s[%d]" % (where, number), row) for number, row in enumerate(given))


def _wish(where: str, row: Any) -> Wish:
    if not isinstance(row, Mapping):
        raise RightsizeError(where, "%r is not an entry" % (row,), "Write it as %s." % _EXAMPLE)
    for key in row:
        if key not in _KEYS:
            near = difflib.get_close_matches(str(key), _KEYS, 1)
            hint = "Did you mean %s? " % near[0] if near else ""
            raise RightsizeError("%s.%s" % (where, key), "unknown key", hint + "Known keys: %s." % ", ".join(_KEYS))
    values: dict[str, Any] = {"where": where}
    for key in (*_WORDS, *_TEXTS, "leave", "memory", "sm_percent"):
        if key in row:
            values["memory_bytes" if key == "memory" else key] = _value("%s.%s" % (where, key), key, row[key])
    if values.get("profile") and values.get("mode", "mig") not in ("auto", "mig"):
        problem = "a MIG profile needs the mode mig, and the mode is %s" % values["mode"]
        raise RightsizeError("%s.profile" % where, problem, "Remove one of them.")
    return Wish(**values)


def _value(where: str, key: str, value: Any) -> Any:
    """Return a key's checked value. Raises RightsizeError if it is invalid."""
    if key in _WORDS:
        if value not in _WORDS[key]:
            raise RightsizeError(where, "%r is invalid" % (value,), "Use one of %s." % ", ".join(_WORDS[key]))
    elif key in _TEXTS:
        if not isinstance(value, str) or not value:
            raise RightsizeError(where, "%r is not text" % (value,), "Write text, or remove the key.")
    elif key == "leave":
        if not isinstance(value, bool):
            raise RightsizeError(where, "%r is neither true nor false" % (value,), "Write true or false.")
    elif key == "memory":
        try:
            return parse_size_bytes(str(value))
        except SizeError as error:
            raise RightsizeError(where, error.problem, error.cure) from None
    elif isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 100:
        problem = "%r is not an integer from 1 to 100" % (value,)
        raise RightsizeError(where, problem, "Write a percentage of the GPU's SMs, for example 30.")
    return value


def wish_of(wishes: Sequence[Wish], names: Sequence[str]) -> Wish:
    """Return the first entry that matches one of the names, or the defaults.

    `match` is a case-sensitive glob.
    """
    return next(
        (wish for wish in wishes if any(fnmatch.fnmatchcase(name, wish.match) for name in names)),
        dataclasses.replace(Wish(), match=""),
    )
