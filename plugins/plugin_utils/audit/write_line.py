# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write an audit as one line."""

from __future__ import annotations

from typing import Sequence

from ..counted import counted
from .model import ASKING, CALM, Audit


def line(audit: Audit) -> str:
    """Return a one-line summary for logs and subjects of mails.

    Only verdicts in ASKING count as findings.
    """
    number = sum(map(audit.count, ASKING))
    text = "%s: %s" % (counted(number, "finding"), _words(audit, ASKING)) if number else "no findings"
    new = sum(1 for found in audit.findings if found.state == "new" and found.verdict.word in ASKING)
    text += "; %d new, %d gone" % (new, len(audit.gone))
    others = _words(audit, CALM)
    if others:
        text += "; without findings: %s" % others
    if audit.waste_per_month is not None:
        text += "; wasted: %s/month" % money(audit.waste_per_month, audit.currency)
    return text


def _words(audit: Audit, words: Sequence[str]) -> str:
    return ", ".join("%d %s" % (audit.count(word), word.replace("_", " ")) for word in words if audit.count(word))


def money(amount: float, currency: str) -> str:
    """Return an amount with its currency, rounded to a whole number."""
    return ("%s %s" % (format(round(amount), ","), currency)).strip()
