# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stable names for findings, and two audits held against each other: new, still, gone. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Mapping, Sequence

from .model import WORDS, Finding, Holding, Subject, Verdict

#: Words that ask for nothing: they come and go without being news.
_CALM = ("right", "free", "no_data")


@dataclass(frozen=True)
class Former:
    """What is kept of a finding of the audit before, as the JSON report has it."""

    id: str
    word: str
    first_found_seconds: float | None
    finding: Finding | None = None


def finding_id(subject: Subject, word: str) -> str:
    """Ten hexadecimal digits of who and what, never of a figure, so that the same finding keeps its name."""
    parts = (subject.kind, subject.host, subject.gpu_uuid, subject.mig_instance, subject.name, word)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:10]


def findings(
    judged: Sequence[tuple[Holding, Verdict]], former: Mapping[str, Former], now_seconds: float
) -> tuple[Finding, ...]:
    """All findings, the gravest first, of these the dearest. `former` is by id; empty where there was no audit before."""
    made = []
    for holding, verdict in judged:
        name = finding_id(holding.subject, verdict.word)
        before = former.get(name)
        first = before.first_found_seconds if before and before.first_found_seconds is not None else now_seconds
        made.append(Finding(name, verdict, holding, "still" if before else "new", first))
    return tuple(sorted(made, key=_order))


def gone(present: Sequence[Finding], former: Mapping[str, Former]) -> tuple[Finding, ...]:
    """Findings of the audit before that asked for something, and are no more."""
    there = {found.id for found in present}
    return tuple(
        replace(before.finding, state="gone")
        for name, before in sorted(former.items())
        if name not in there and before.finding is not None and before.word not in _CALM
    )


def _order(found: Finding) -> tuple[int, float, str, str, str, str]:
    subject = found.holding.subject
    return (
        WORDS.index(found.verdict.word),
        -(found.verdict.waste_per_month or 0.0),
        subject.host,
        subject.gpu_index.zfill(4),
        subject.mig_instance.zfill(4),
        subject.name,
    )
