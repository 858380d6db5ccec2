# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write an audit as one line."""

from __future__ import annotations

from typing import Sequence

from ..counted import counted
from .ledger_model import HEADLINES
from .model import ASKING, CALM, Audit


def line(audit: Audit) -> str:
    """Return a one-line summary for logs and mail subjects.

    Only verdicts in ASKING count as findings.
    """
    number = sum(map(audit.count, ASKING))
    text = "%s: %s" % (counted(number, "finding"), _words(audit, ASKING)) if number else "no findings"
    new = sum(1 for found in audit.findings if found.state == "new" and found.verdict.word in ASKING)
    text += "; %d new, %d gone" % (new, len(audit.gone))
    others = _words(audit, CALM)
    if others:
        text += "; without findings: %s" % others
    for title, words in HEADLINES.items():
        total = audit.ledger.sum_of(words)
        if total.gpus:
            text += "; %s: %s" % (title, gpus(total.gpus))
            text += "" if total.cost_per_month is None else " (%s/month)" % money(total.cost_per_month, audit.currency)
    return text


def _words(audit: Audit, words: Sequence[str]) -> str:
    return ", ".join("%d %s" % (audit.count(word), word.replace("_", " ")) for word in words if audit.count(word))


def part(count: float) -> str:
    """Return a number of GPUs without the noun."""
    return ("%.2f" % count).rstrip("0").rstrip(".")


def gpus(count: float) -> str:
    """Return a number of GPUs, which can be a fraction."""
    text = part(count)
    return "%s %s" % (text, "GPU" if text == "1" else "GPUs")


def money(amount: float, currency: str) -> str:
    """Return an amount with its currency, rounded to a whole number."""
    return ("%s %s" % (format(round(amount), ","), currency)).strip()
