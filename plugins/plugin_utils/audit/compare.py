# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stable names for findings, and two audits held against each other: new, still, gone, unseen. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Callable, Mapping, Sequence

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


def gone(
    present: Sequence[Finding], former: Mapping[str, Former], *, looked: Callable[[Subject], bool]
) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """(gone, unseen): findings of the audit before that asked for something, and are not there now.

    `looked` says whether this audit could have seen a subject that it has no finding of. What it could not see, or of
    which it has no data, is not mended for that: it stays on record as unseen, with its age.
    """
    there = {found.id for found in present}
    words = {_key(found.holding.subject): found.verdict.word for found in present}
    away, hidden = [], []
    for name, before in sorted(former.items()):
        if name in there or before.finding is None or before.word in _CALM:
            continue
        subject = before.finding.holding.subject
        word = words.get(_key(subject))
        unknown = word == "no_data" or (word is None and not looked(subject))
        (hidden if unknown else away).append(replace(before.finding, state="unseen" if unknown else "gone"))
    return tuple(away), tuple(hidden)


def _key(subject: Subject) -> tuple[str, ...]:
    return (subject.kind, *subject.place, subject.name)


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
