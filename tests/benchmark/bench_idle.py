# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure the idle rule on usage patterns with known answers (docs/audit.md).

The history is in a real Prometheus. Standard error lists each wrong verdict, and each pattern that the rule cannot
judge.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.audit import idle_abandoned, idle_judge, idle_near, idle_working
from tests.audit.idle_model import WEEK, Pattern

FIGURES = (
    "idle_patterns",
    "idle_false_flags",
    "idle_recall",
    "idle_false_stops",
    "idle_contradictions_missed",
    "idle_patterns_near",
)
#: Hosts in one Prometheus. Patterns are on separate hosts, so their verdicts do not depend on each other.
HOSTS_A_PART = 24


@dataclass(frozen=True)
class Part:
    """The result for a part of the patterns, without the patterns themselves.

    `wrong` has each error's kind and text, and `untold` has the pattern's name for each audit without a verdict.
    """

    judged: int
    due: int
    flagged: int
    wrong: list[tuple[str, str]]
    untold: list[str]


def figures(options):
    """Yield (name, value, unit)."""
    small = bool(options.get("SMALL"))
    patterns = patterns_of(small)
    numbers = range(len(parts_of(patterns)))
    workers = os.cpu_count() or 1
    say(f"{len(patterns)} patterns in {len(numbers)} parts, {workers} at once")
    found = []
    # Forked workers inherit the import path.
    with ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) as pool:
        for number, part in enumerate(pool.map(judge_part, numbers, [small] * len(numbers)), start=1):
            found.append(part)
            for _what, text in part.wrong:
                say(text)
            say(f"part {number}: {part.judged} verdicts")
    untold = [name for part in found for name in part.untold]
    say(f"not judged, for want of history: {len(untold)} audits of {', '.join(sorted(set(untold))) or 'none'}")
    judged, due, flagged = (sum(getattr(part, name) for part in found) for name in ("judged", "due", "flagged"))
    say(f"{judged} verdicts, {flagged} of {due} idle ones found")
    wrong = [what for part in found for what, _text in part.wrong]
    yield FIGURES[0], len(patterns), "count"
    yield FIGURES[1], wrong.count("false flag"), "count"
    yield FIGURES[2], flagged / due, "ratio"
    yield FIGURES[3], wrong.count("false stop"), "count"
    yield FIGURES[4], wrong.count("contradiction missed"), "count"
    # A metric or a pause of these patterns is within a factor of three of its threshold.
    yield FIGURES[5], sum(pattern.near for pattern in patterns), "count"


def patterns_of(small: bool) -> list[Pattern]:
    """Return all patterns, or two of them."""
    # The named patterns' holders started four and two weeks before the end, each at two times of the day and week.
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
    return [patterns[0], patterns[-1]] if small else patterns


def parts_of(patterns: list[Pattern]) -> list[list[Pattern]]:
    """Divide the patterns by their hosts.

    Neighbours are similar, so each part gets some of all kinds.
    """
    by_host: dict[str, list[Pattern]] = {}
    for pattern in patterns:
        by_host.setdefault(pattern.host, []).append(pattern)
    hosts = list(by_host.values())
    count = -(-len(hosts) // HOSTS_A_PART)
    return [[pattern for host in hosts[first::count] for pattern in host] for first in range(count)]


def judge_part(number: int, small: bool) -> Part:
    """Serve a part of the patterns, and run all of the part's audits."""
    patterns = parts_of(patterns_of(small))[number]
    audits, clients = [*idle_judge.GROWING, *idle_judge.LAST, *idle_judge.HOLIDAYS], (None, 0, 2)
    if small:
        audits, clients = idle_judge.LAST[-1:], ()
    with tempfile.TemporaryDirectory(prefix="bench-idle-") as name, idle_judge.serve(patterns, Path(name)) as url:
        outcomes = [idle_judge.judge(url, patterns, audits)]
        # Repeat with hosts that see clients, see no clients, or do not check for clients.
        for seen in clients:
            outcomes.append(idle_judge.judge(url, idle_judge.seen_with(patterns, seen), idle_judge.LAST))
    whole = idle_judge.total(outcomes)
    return Part(
        whole.judged,
        whole.due,
        whole.flagged,
        [(one.what, str(one)) for one in whole.wrong],
        [pattern.name for pattern, _minute in whole.untold],
    )


def say(text):
    print(f"idle: {text}", file=sys.stderr, flush=True)
