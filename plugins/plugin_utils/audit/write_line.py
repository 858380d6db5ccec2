# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An audit in one line."""

from __future__ import annotations

from .model import WORDS, Audit


def line(audit: Audit) -> str:
    """The summary for a log, a mail's subject, a person in a hurry."""
    words = ["%d %s" % (audit.count(word), word.replace("_", " ")) for word in WORDS if audit.count(word)]
    text = "%d findings: %s" % (len(audit.findings), ", ".join(words)) if words else "nothing found"
    new = sum(1 for found in audit.findings if found.state == "new")
    text += "; %d new, %d gone" % (new, len(audit.gone))
    if audit.waste_per_month is not None:
        text += "; wasted: %s/month" % money(audit.waste_per_month, audit.currency)
    return text


def money(amount: float, currency: str) -> str:
    return ("%s %s" % (format(round(amount), ","), currency)).strip()
