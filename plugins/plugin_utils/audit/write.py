# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the files of an audit. Each file is written atomically."""

from __future__ import annotations

from pathlib import Path

from .. import private
from . import leases, report_csv, report_html, report_json, report_prom
from .model import Audit
from .report_json import ReportError

JSON, CSV, HTML = "audit.json", "audit.csv", "audit.html"
HOURS, OWNERS, METRICS, LEASES = "audit-hours.csv", "audit-owners.csv", "audit.prom", "leases.html"
FILES = (JSON, CSV, HTML, HOURS, OWNERS, METRICS, LEASES)


def all_of(audit: Audit, directory: Path) -> list[Path]:
    """Write all files of a report. Returns their paths. Raises ReportError.

    Writes the page of leases only if an entry offers leases.
    """
    texts = {
        JSON: report_json.to_text(audit),
        CSV: report_csv.to_text(audit),
        HTML: report_html.to_text(audit),
        HOURS: report_csv.hours_text(audit),
        OWNERS: report_csv.owners_text(audit),
        METRICS: report_prom.to_text(audit),
    }
    if audit.leases is not None:
        texts[LEASES] = leases.to_text(audit.leases)
    try:
        private.make_folder(directory)
        if LEASES not in texts:
            # Remove the previous report's page.
            (directory / LEASES).unlink(missing_ok=True)
        for name, text in texts.items():
            private.write(directory / name, text)
    except OSError as error:
        raise ReportError(
            str(directory), "the report cannot be written: %s" % error, "Name another directory."
        ) from None
    return [directory / name for name in texts]
