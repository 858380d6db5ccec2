# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the notices to owners of idle GPUs, with pure functions.

A notice is plain text and fits on one screen.
"""

from __future__ import annotations

import urllib.parse
from typing import Any, Mapping, Sequence

from ..keep.notices import utc
from ..printable import printable

_SHOWN = 10
#: Maximum length of a text from a host or user.
_LETTERS = 300


def notice(host: str, row: Mapping[str, Any], keep_url: str = "") -> str:
    """Return the notice before a stop.

    `row` is a row under C(noticed) in the result of the module reclaim.
    """
    nothing = "none of them" if len(row["places"]) > 1 else "nothing of it"
    lines = ["%s on %s holds %s and uses %s." % (_who(row), host, _gpus(row), nothing)]
    if row.get("idle_since"):
        lines.append("It has been idle since %s or longer." % utc(row["idle_since"]))
    if row["kind"] == "job" and not row.get("stop", True):
        lines.append("If you no longer need it, run: scancel %s" % _cut(row["name"]))
    elif row["kind"] == "job":
        lines.append("It will be cancelled after %s, unless it uses its GPU again." % utc(row["stop_after"]))
    else:
        what = "Its idle kernels will be shut down" if row.get("jupyter") else "It will be stopped"
        lines.append("%s after %s, unless it uses its GPU again or is kept." % (what, utc(row["stop_after"])))
    if row.get("keep"):
        lines += ["", "To keep it for 3 days, run on %s:" % host, "", "    gpu-layout keep %s 3d" % _cut(row["keep"])]
    link = _link(keep_url, host, row)
    if link:
        lines += ["", "Or open: %s" % link]
    return "\n".join(lines) + "\n"


def stopped(host: str, row: Mapping[str, Any]) -> str:
    """Return the text after a stop.

    `row` is a row under C(stopped) in the result of the module reclaim.
    """
    if row.get("kernels"):
        what = "Idle kernels of %s on %s were shut down: %s." % (
            _who(row), host, _cut("; ".join(map(str, row["kernels"][:_SHOWN]))),
        )  # fmt: skip
        return what + "\n"
    if row["kind"] == "job":
        return "%s on %s was cancelled. It held %s without any sign of work.\n" % (_who(row), host, _gpus(row))
    back = "systemctl start" if row["kind"] == "unit" else "%s start" % (row.get("runtime") or "docker")
    return "%s on %s was stopped. It held %s without any sign of work.\nTo start it again: %s %s\n" % (
        _who(row), host, _gpus(row), _cut(back), _cut(row["name"]),
    )  # fmt: skip


def subject(host: str, stage: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the subject line. `stage` is C(noticed) or C(stopped)."""
    words = "will be stopped" if stage == "noticed" else "stopped"
    if stage == "noticed" and not any(row.get("stop", True) for row in rows):
        words = "idle"
    name = ("job " if rows[0]["kind"] == "job" else "") + _cut(rows[0]["name"])
    what = name if len(rows) == 1 else "%d idle holders of GPUs" % len(rows)
    return "GPU host %s: %s %s" % (host, what, words)


def _who(row: Mapping[str, Any]) -> str:
    kinds = {"unit": "Service", "job": "Slurm job"}
    return "%s %s" % (kinds.get(row["kind"], "Container"), _cut(row["name"]))


def _gpus(row: Mapping[str, Any]) -> str:
    places = [_cut(place) for place in row["places"][:_SHOWN]]
    more = len(row["places"]) - len(places)
    return ", ".join(places) + (" and %d more" % more if more else "")


def _link(url: str, host: str, row: Mapping[str, Any]) -> str:
    for word, value in (("{host}", host), ("{name}", row["name"])):
        url = url.replace(word, urllib.parse.quote(str(value), safe=""))
    return url


def _cut(text: Any) -> str:
    text = printable(str(text))
    return text if len(text) <= _LETTERS else text[: _LETTERS - 3] + "..."
