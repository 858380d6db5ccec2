# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep several reports: one directory each, a link to the latest, and a trend page.

2026-11-22T060000Z/{audit.html,audit.csv,audit-hours.csv,audit.prom,audit.json,summary.json}
latest -> 2026-11-22T060000Z
index.html
"""

from __future__ import annotations

import datetime
import json
import re
from pathlib import Path

from ...module_utils import durable
from .. import private
from . import report_index, write
from .model import SCHEMA_VERSION, Audit
from .report_index import Entry
from .report_json import ReportError, summary
from .write_line import line

LATEST, INDEX, SUMMARY = "latest", "index.html", "summary.json"

_NAME = re.compile(r"\d{4}-\d\d-\d\dT\d{6}Z")
# Files of a report. A directory with any other file is not removed.
_FILES = (*write.FILES, SUMMARY)
#: The files of a report, and the unfinished files that an interrupted run leaves behind.
_OURS = (*_FILES, *(durable.unfinished(Path(name)).name for name in _FILES))


def keep(audit: Audit, directory: Path, count: int) -> list[Path]:
    """Write the audit, and remove all but the latest `count` reports.

    The new report counts as one of them. Returns the files that were written. Raises ReportError.
    """
    if count < 1:
        raise ValueError(count)
    place = _place(directory, audit.made_at_seconds)
    files = write.all_of(audit, place)
    try:
        private.write(place / SUMMARY, _summary(audit))
        _link(directory / LATEST, place.name)
        older = [path for path in _places(directory) if path != place]
        for old in older[: max(0, len(older) + 1 - count)]:
            _remove(old)
        private.write(directory / INDEX, report_index.to_text(_entries(directory)))
    except OSError as error:
        raise ReportError(
            str(directory), "the reports cannot be kept: %s" % error, "Repair the directory, or name another one."
        ) from None
    return [*files, place / SUMMARY, directory / INDEX]


def _place(directory: Path, made_at_seconds: float) -> Path:
    """Return the path for a new report, named after the time of the audit in UTC.

    If that name is taken, the time is increased by seconds until the name is free.
    """
    made = datetime.datetime.fromtimestamp(made_at_seconds, datetime.timezone.utc)
    while (place := directory / made.strftime("%Y-%m-%dT%H%M%SZ")).exists():
        made += datetime.timedelta(seconds=1)
    return place


def _summary(audit: Audit) -> str:
    data = {
        "schema_version": SCHEMA_VERSION,
        "made_at_seconds": audit.made_at_seconds,
        "line": line(audit),
        "summary": summary(audit),
    }
    return json.dumps(data, indent=1, sort_keys=True) + "\n"


def _places(directory: Path) -> list[Path]:
    """Return the directories of all reports, the oldest first."""
    return sorted(path for path in directory.iterdir() if _NAME.fullmatch(path.name) and not path.is_symlink())


def _entries(directory: Path) -> list[Entry]:
    """Read the summaries of all reports.

    Skips reports without a summary, which interrupted runs leave behind.
    """
    entries = []
    for place in _places(directory):
        try:
            data = json.loads((place / SUMMARY).read_text(encoding="utf-8"))
            entries.append(Entry.of(place.name, data))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return entries


def _link(path: Path, target: str) -> None:
    """Replace the link atomically, so that a link always exists."""
    if path.exists() and not path.is_symlink():
        raise ReportError(str(path), "it blocks the link to the latest report", "Move it away.")
    durable.link(path, target)


def _remove(place: Path) -> None:
    """Remove the report and its directory, unless the directory has other files."""
    if {path.name for path in place.iterdir()} - set(_OURS):
        return
    for name in _OURS:
        (place / name).unlink(missing_ok=True)
    place.rmdir()
