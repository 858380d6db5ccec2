# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An audit as JSON (docs/audit.schema.json), and the former one read back from it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Mapping

from ...module_utils.errors import FleetError
from .compare import Former
from .model import SCHEMA_VERSION, WORDS, Audit, Finding, Holding, Subject, Verdict


class ReportError(FleetError):
    """A former report that cannot be read, or a place where none can be written."""


def to_data(audit: Audit) -> dict[str, Any]:
    """The whole audit as dictionaries, lists and scalars."""
    data = dataclasses.asdict(audit)
    data["summary"] = summary(audit)
    return data


def summary(audit: Audit) -> dict[str, Any]:
    """What automation asks first: how many of each word, how many are new or gone, and what is wasted."""
    return {
        "findings": len(audit.findings),
        "words": {word: audit.count(word) for word in WORDS},
        "new": sum(1 for found in audit.findings if found.state == "new"),
        "still": sum(1 for found in audit.findings if found.state == "still"),
        "gone": len(audit.gone),
        "unseen": len(audit.unseen),
        "waste_per_month": audit.waste_per_month,
        "currency": audit.currency,
    }


def to_text(audit: Audit) -> str:
    # NaN is no JSON: what is not a number was dropped on the way in.
    return json.dumps(to_data(audit), indent=1, sort_keys=True, allow_nan=False) + "\n"


def read_former(path: Path) -> dict[str, Former]:
    """What a report before said, by the findings' ids.

    Raises ReportError where the file is none of ours, or of a version that is not known here.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        version = data["schema_version"]
        if version != SCHEMA_VERSION:
            raise ReportError(
                str(path),
                "it is a report of version %r, and this release reads version %d" % (version, SCHEMA_VERSION),
                "Leave previous out once; the next audit can be compared again.",
            )
        # What the audit before could not see again keeps its age until one can.
        return {row["id"]: _former(row) for row in (*data.get("unseen", ()), *data["findings"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = error or type(error).__name__
        raise ReportError(
            str(path), "it cannot be read as an audit: %s" % why, "Name an audit.json of this collection."
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
    """Without the keys that a later release of the same version has added."""
    return {field.name: row[field.name] for field in dataclasses.fields(kind) if field.name in row}
