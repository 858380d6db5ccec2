# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Give findings stable IDs and compare an audit with the previous one. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Callable, Mapping, Sequence

from .model import CALM, WORDS, Finding, Holding, Subject, Verdict


@dataclass(frozen=True)
class Former:
    """A finding of the previous audit, read from its JSON report."""

    id: str
    word: str
    first_found_seconds: float | None
    finding: Finding | None = None


def finding_id(subject: Subject, word: str) -> str:
    """Return an ID of ten hexadecimal digits for a subject and its verdict.

    The ID does not depend on measured values, so it stays the same from audit to audit.
    """
    parts = (subject.kind, subject.host, subject.gpu_uuid, subject.mig_instance, subject.name, word)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:10]


def findings(
    judged: Sequence[tuple[Holding, Verdict]], former: Mapping[str, Former], now_seconds: float
) -> tuple[Finding, ...]:
    """Return all findings, sorted by urgency and cost.

    `former` maps IDs to findings of the previous audit. It is empty without a previous audit.
    """
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
    """Return (gone, unseen): previous findings that this audit does not have.

    `looked` returns whether this audit checked a subject and had data about it. A finding about such a subject is gone.
    Any other finding is unseen and keeps its age.
    """
    present_ids = {found.id for found in present}
    words = {_key(found.holding.subject): found.verdict.word for found in present}
    away, hidden = [], []
    for name, before in sorted(former.items()):
        if name in present_ids or before.finding is None or before.word in CALM:
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
