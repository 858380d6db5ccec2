# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the report as one HTML page without scripts.

All values from hosts are escaped.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any, Mapping

from ..audit.report_html import environment
from .acceptance import FAIL, PASS
from .outcome import DIFFERS, NOT_RUN, PASSED
from .report import line

_TEMPLATES = Path(__file__).parent / "templates"
#: CSS classes of the outcomes.
_CLASSES = {PASSED: "passed", DIFFERS: "differs", NOT_RUN: "not_run"}
#: CSS classes of the verdicts.
_VERDICTS = {PASS: "passed", FAIL: "differs", NOT_RUN: "not_run"}


def to_text(report: Mapping[str, Any]) -> str:
    """Return the HTML page."""
    checks = [dict(check, css=_CLASSES[check["outcome"]]) for check in report["checks"]]
    differing = [check for check in checks if check["outcome"] == DIFFERS]
    areas = []
    for (gpu, area), rows in groupby(sorted(checks, key=_place), key=lambda check: (check["gpu"], check["area"])):
        rows = list(rows)
        counted = {css: sum(row["css"] == css for row in rows) for css in _CLASSES.values()}
        areas.append({"gpu": gpu, "area": area, "rows": rows, "counts": counted})
    return _template().render(
        report=report, line=line(report), differing=differing, areas=areas, acceptance=_acceptance(report), kinds=[]
    )


@lru_cache(maxsize=None)
def _template() -> Any:
    return environment(_TEMPLATES).get_template("gpu-check.html.j2")


def _acceptance(report: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the verdicts, failures first.

    Returns None for a report without acceptance.
    """
    found = report.get("acceptance")
    if found is None:
        return None
    rows = [dict(verdict, css=_VERDICTS[verdict["outcome"]]) for verdict in found["verdicts"]]
    return {"accepted": found["accepted"], "rows": sorted(rows, key=lambda row: row["outcome"] != FAIL)}


def _place(check: Mapping[str, Any]) -> tuple[int, str]:
    return (-1 if check["gpu"] is None else check["gpu"], check["area"])
