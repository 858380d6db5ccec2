# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Create the page that lists all reports, from made-up reports.

Functions return HTML for the cases of test_page.py.
"""

from __future__ import annotations

from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit import report_index
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.model import WORDS
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.report_index import Entry


def entry(day, **more):
    """Return the index entry of a day's report."""
    given = {
        "name": "report-%d" % day,
        "made_at_seconds": 1700000000.0 + day * 86400,
        "line": "so it was",
        "words": {word: 10 + 3 * day * number % 17 for number, word in enumerate(WORDS)},
        "new": day,
        "gone": 2,
        "reserved_gpus": 1.5 * (day + 1),
        "not_assigned_gpus": 2.0,
        "reserved_per_month": 1234.0 * (day + 1),
        "not_assigned_per_month": 100.0,
        "currency": "EUR",
    }
    return Entry(**{**given, **more})


def usual():
    return report_index.to_text([entry(day) for day in range(20)])


def stretched(long):
    words = dict.fromkeys(WORDS, 10**9)
    rows = [
        entry(
            day,
            name=long * 3,
            line=long,
            words=words,
            new=10**9,
            gone=10**9,
            reserved_per_month=1e12,
            currency="X" * 20,
        )
        for day in range(3)
    ]
    return report_index.to_text(rows)


def hostile(texts):
    return report_index.to_text(
        [entry(day, name=text, line=text, currency=text, made_at_seconds=1.7e9 + day) for day, text in enumerate(texts)]
        # The page shows the last report's summary line.
        + [entry(len(texts) + 20, line="".join(texts))]
    )


def large():
    """Return a page with three years of daily reports."""
    return report_index.to_text([entry(day) for day in range(1000)])


def empty():
    return report_index.to_text([])
