# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the index page: a list of all kept reports, and their trend. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Mapping, Sequence

from .model import WORDS
from .report_html import environment, when
from .write_line import gpus, money

_CHART = {"width": 640, "height": 150}
_EDGE = 3

#: Verdicts that the chart of findings shows, with their labels.
_LINES = (
    ("held_without_process", "held without process"),
    ("idle", "idle"),
    ("standby", "standby"),
    ("oversized_memory", "oversized memory"),
    ("oversized_compute", "oversized compute"),
    ("unhealthy", "unhealthy"),
)


@dataclass(frozen=True)
class Entry:
    """A kept report: directory name, time, one-line summary and counts.

    `words` has the number of subjects by verdict. `new` and `gone` are numbers of findings.
    """

    name: str
    made_at_seconds: float
    line: str
    words: Mapping[str, int]
    new: int
    gone: int
    currency: str
    #: Sums of the ledger. None in older releases' reports.
    reserved_gpus: float | None = None
    not_assigned_gpus: float | None = None
    reserved_per_month: float | None = None
    not_assigned_per_month: float | None = None

    @classmethod
    def of(cls, name: str, data: Mapping[str, Any]) -> Entry:
        """Create an entry from the content of a report's summary.json.

        Raises KeyError, TypeError or ValueError if the data is not a summary.
        """
        sums = data["summary"]
        words = {word: int(sums["words"].get(word, 0)) for word in WORDS}
        # Older releases have no ledger.
        ledger = dict(sums.get("ledger", {}))
        reserved, not_assigned = (dict(ledger.get(name, {})) for name in ("reserved_unused", "not_assigned"))
        return cls(
            name,
            float(data["made_at_seconds"]),
            str(data["line"]),
            words,
            # Older releases only have `new`, which also counts subjects without findings.
            int(sums.get("new_findings", sums["new"])),
            int(sums["gone"]),
            str(sums["currency"]),
            *(_number(one.get(key)) for key in ("gpus", "cost_per_month") for one in (reserved, not_assigned)),
        )


def to_text(entries: Sequence[Entry]) -> str:
    """Return the HTML page. The latest report is first."""
    ordered = sorted(entries, key=lambda entry: entry.made_at_seconds)
    counts = [(name, title, [float(entry.words[name]) for entry in ordered]) for name, title in _LINES]
    wasted = _titled([(entry.reserved_gpus, entry.not_assigned_gpus) for entry in ordered])
    costs = _titled([(entry.reserved_per_month, entry.not_assigned_per_month) for entry in ordered])
    times = [entry.made_at_seconds for entry in ordered]
    return (
        environment()
        .get_template("index.html.j2")
        .render(
            entries=ordered[::-1],
            changes=_changes(ordered),
            kinds=WORDS,
            charts=[
                chart
                for chart in (
                    _chart("Findings", times, counts, lambda value: "%d" % value),
                    _chart("GPUs without use", times, wasted, gpus),
                    _chart(
                        "Cost per month without use", times, costs, lambda value: money(value, ordered[-1].currency)
                    ),
                )
                if chart
            ],
            money=money,
            gpus=gpus,
        )
    )


def _changes(entries: Sequence[Entry]) -> list[dict[str, str]]:
    """Return how the headlines changed from the first to the last report.

    Reports in different currencies or without prices are compared by GPUs. Returns [] for fewer than two reports with a
    ledger.
    """
    known = [one for one in entries if one.reserved_gpus is not None and one.not_assigned_gpus is not None]
    if len(known) < 2:
        return []
    first, last = known[0], known[-1]
    found = []
    for title, old_gpus, new_gpus, old_cost, new_cost in (
        (
            "reserved and unused",
            first.reserved_gpus,
            last.reserved_gpus,
            first.reserved_per_month,
            last.reserved_per_month,
        ),
        (
            "not assigned",
            first.not_assigned_gpus,
            last.not_assigned_gpus,
            first.not_assigned_per_month,
            last.not_assigned_per_month,
        ),
    ):
        text, per = _difference((old_gpus or 0.0) - (new_gpus or 0.0), gpus), ""
        if old_cost is not None and new_cost is not None and first.currency == last.currency:
            text, per = _difference(old_cost - new_cost, lambda value: money(value, last.currency)), " per month"
        span = "%s → %s" % (gpus(old_gpus or 0.0), gpus(new_gpus or 0.0))
        found.append({"text": text, "title": title + per, "span": span, "since": when(first.made_at_seconds)})
    return found


def _difference(less: float, show: Callable[[float], str]) -> str:
    """Return a difference with its direction."""
    text = show(abs(less))
    return "unchanged" if text == show(0.0) else "%s %s" % (text, "less" if less > 0 else "more")


def _titled(values: Sequence[tuple[float | None, float | None]]) -> list[tuple[str, str, list[float | None]]]:
    return [
        ("reserved", "reserved and unused", [reserved for reserved, _other in values]),
        ("not_assigned", "not assigned", [other for _reserved, other in values]),
    ]


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _chart(
    title: str, times: Sequence[float], lines: Sequence[tuple[str, str, Sequence[float | None]]], show: Any
) -> dict[str, Any] | None:
    """Return the lines of a chart over time.

    The vertical axis goes from 0 to the maximum. Returns None for fewer than two reports, or without a value above 0.
    """
    most = max((value for _name, _title, values in lines for value in values if value is not None), default=0.0)
    if len(times) < 2 or times[-1] <= times[0] or most <= 0:
        return None
    room = _CHART["height"] - 2 * _EDGE
    drawn = []
    for name, label, values in lines:
        # A report without prices is a gap in the line.
        parts: list[list[str]] = [[]]
        for at, value in zip(times, values):
            if value is None:
                parts.append([])
            else:
                across = _CHART["width"] * (at - times[0]) / (times[-1] - times[0])
                parts[-1].append("%.1f,%.1f" % (across, _EDGE + room * (1 - value / most)))
        known = [value for value in values if value is not None]
        if any(known):
            drawn.append(
                {
                    "name": name,
                    "title": label,
                    "last": show(values[-1]) if values[-1] is not None else "unknown",
                    "parts": [" ".join(part) for part in parts if part],
                }
            )
    grid = [_EDGE + room * share for share in (0, 0.5, 1)]
    return {**_CHART, "title": title, "lines": drawn, "grid": grid, "most": show(most), "times": (times[0], times[-1])}
