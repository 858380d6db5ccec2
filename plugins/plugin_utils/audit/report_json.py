# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write an audit as JSON (docs/audit.schema.json), and read the previous audit."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Mapping

from ...module_utils.errors import FleetError
from .compare import Former
from .ledger_model import NOT_ASSIGNED, RESERVED_UNUSED, Ledger
from .model import ASKING, SCHEMA_VERSION, WORDS, Audit, Finding, Holding, Subject, Verdict


class ReportError(FleetError):
    """A previous report cannot be read, or a report cannot be written."""


def to_data(audit: Audit) -> dict[str, Any]:
    """Return the audit as dictionaries, lists and scalars."""
    data = dataclasses.asdict(dataclasses.replace(audit, ledger=Ledger()))
    # The summary has the ledger's sums, and audit-hours.csv its rows.
    del data["ledger"]
    data["summary"] = summary(audit)
    return data


def sums(book: Ledger) -> dict[str, Any]:
    """Return the sums of each class, of the two headlines, and of all classes.

    audit-hours.csv has the rows.
    """
    return {
        "classes": {word: dataclasses.asdict(one) for word, one in book.by_class().items()},
        "reserved_unused": dataclasses.asdict(book.sum_of(RESERVED_UNUSED)),
        "not_assigned": dataclasses.asdict(book.sum_of(NOT_ASSIGNED)),
        "total": dataclasses.asdict(book.sum_of()),
    }


def summary(audit: Audit) -> dict[str, Any]:
    """Return the counts by verdict and state, and the waste.

    `findings`, `new` and `still` count all subjects. `new_findings` counts only new subjects whose verdict is in
    ASKING.
    """
    return {
        "findings": len(audit.findings),
        "words": {word: audit.count(word) for word in WORDS},
        "new": sum(1 for found in audit.findings if found.state == "new"),
        "new_findings": sum(1 for found in audit.findings if found.state == "new" and found.verdict.word in ASKING),
        "still": sum(1 for found in audit.findings if found.state == "still"),
        "gone": len(audit.gone),
        "unseen": len(audit.unseen),
        "waste_per_month": audit.waste_per_month,
        "ledger": sums(audit.ledger),
        "currency": audit.currency,
    }


def to_text(audit: Audit) -> str:
    """Return the audit as JSON.

    All numbers are finite: NaN and infinity were dropped when the metrics were read.
    """
    return json.dumps(to_data(audit), indent=1, sort_keys=True, allow_nan=False) + "\n"


def read_former(path: Path) -> dict[str, Former]:
    """Read the findings of a previous report by ID.

    Raises ReportError if the file is not an audit report or has an unknown schema version.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        version = data["schema_version"]
        if version != SCHEMA_VERSION:
            raise ReportError(
                str(path),
                "the report has version %r, and this release reads version %d" % (version, SCHEMA_VERSION),
                "Leave out previous once. The next audit can be compared again.",
            )
        # Include findings that the previous audit could not check, so that they keep their age.
        return {row["id"]: _former(row) for row in (*data.get("unseen", ()), *data["findings"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = error or type(error).__name__
        raise ReportError(
            str(path), "the file is not an audit report: %s" % why, "Name an audit.json of this collection."
        ) from None


def _former(row: Mapping[str, Any]) -> Former:
    verdict = Verdict(**_known(Verdict, row["verdict"]))
    holding = row["holding"]
    finding = Finding(
        row["id"],
        verdict,
        Holding(Subject(**_known(Subject, holding["subject"])), price_per_hour=holding["price_per_hour"]),
        "still",
        row["first_found_seconds"],
    )
    return Former(row["id"], verdict.word, row["first_found_seconds"], finding)


def _known(kind: type, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return only the keys that this release knows.

    Later releases may add keys.
    """
    return {field.name: row[field.name] for field in dataclasses.fields(kind) if field.name in row}
