# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure the idle rule on usage patterns with known answers (docs/audit.md).

The history is in a real Prometheus. Standard error lists each wrong verdict, and each pattern that the rule cannot
judge.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.audit import idle_abandoned, idle_judge, idle_near, idle_working
from tests.audit.idle_model import WEEK

FIGURES = (
    "idle_patterns",
    "idle_false_flags",
    "idle_recall",
    "idle_false_stops",
    "idle_contradictions_missed",
    "idle_patterns_near",
)


def figures(options):
    """Yield (name, value, unit)."""
    # Each named pattern is judged with four and with two weeks of history, and at two times of the week.
    patterns = [
        *idle_working.named(0, 4),
        *idle_working.named(2 * WEEK, 2),
        *idle_working.named(0, 4, idle_working.LATER),
        *idle_working.named(2 * WEEK, 2, idle_working.LATER),
        *idle_working.others(),
        *idle_abandoned.patterns(),
        *idle_near.working(),
        *idle_near.left(),
    ]
    audits, clients = [*idle_judge.GROWING, *idle_judge.LAST, *idle_judge.HOLIDAYS], (None, 0, 2)
    if options.get("SMALL"):
        patterns, audits, clients = [patterns[0], patterns[-1]], idle_judge.LAST[-1:], ()
    say(f"the history of {len(patterns)} patterns is made")
    with tempfile.TemporaryDirectory(prefix="bench-idle-") as name, idle_judge.serve(patterns, Path(name)) as url:
        say(f"{len(audits)} audits")
        outcomes = [idle_judge.judge(url, patterns, audits)]
        # Repeat with hosts that see clients, see no clients, or do not check for clients.
        for seen in clients:
            outcomes.append(idle_judge.judge(url, idle_judge.seen_with(patterns, seen), idle_judge.LAST))
    outcome = idle_judge.total(outcomes)
    for wrong in outcome.wrong:
        say(str(wrong))
    untold = sorted({pattern.name for pattern, _minute in outcome.untold})
    say(f"not judged, for want of history: {len(outcome.untold)} audits of {', '.join(untold) or 'none'}")
    say(f"{outcome.judged} verdicts, {outcome.flagged} of {outcome.due} idle ones found")
    yield FIGURES[0], len(patterns), "count"
    yield FIGURES[1], outcome.count("false flag"), "count"
    yield FIGURES[2], outcome.flagged / outcome.due, "ratio"
    yield FIGURES[3], outcome.count("false stop"), "count"
    yield FIGURES[4], outcome.count("contradiction missed"), "count"
    # A metric or a pause of these patterns is within a factor of three of its threshold.
    yield FIGURES[5], sum(pattern.near for pattern in patterns), "count"


def say(text):
    print(f"idle: {text}", file=sys.stderr, flush=True)
