# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Audit usage patterns in a real Prometheus, and compare verdicts with the truth.

The truth is whether a GPU's holder works, or has left for good.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Iterator, Sequence

from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.holdings import hosts_of
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.make import Order, make
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.model import Audit, Finding
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.prometheus import Access
from ansible_collections.openfleet.gpu.plugins.plugin_utils.idle.holidays import spans
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.reclaim import Bounds, reclaimable
from tests.audit.fleet_history import make_blocks, serve_blocks
from tests.audit.idle_model import DAY, HOLIDAY_DATES, HOUR, MINUTES, START, Pattern
from tests.audit.idle_samples import state, text
from tests.audit.past_rules import record
from tests.monitoring.rule_files import FILES

#: Wrong verdicts on a holder who works. The verdict `free` would offer this holder's GPU to others.
BLAME = ("idle", "held_without_process", "free", "stalled")
FLAGS = ("idle", "held_without_process", "stalled")
#: Length of a history block in seconds. With few long blocks, promtool reads its input less often.
BLOCK = 7200 * 81

#: Minutes that a missing group of signals adds to the grace period.
UNSEEN = 12 * HOUR

#: Audits as (time, window) in minutes: Mondays and Wednesdays at 06:00, with the history so far.
GROWING = [(day * DAY + 6 * HOUR, 14 * DAY) for day in (3, 7, 9, 14, 16, 21, 23)]
#: The last audits, with windows of two and four weeks.
LAST = [(day * DAY + 6 * HOUR, weeks * 7 * DAY) for day in (28, 30) for weeks in (2, 4)]
#: Audits during the holidays.
HOLIDAYS = [(24 * DAY + 13 * HOUR, 14 * DAY), (27 * DAY + 22 * HOUR, 14 * DAY), (29 * DAY + 6 * HOUR, 28 * DAY)]


@dataclass(frozen=True, repr=False)
class Wrong:
    """A wrong verdict.

    `what` is "false flag", "missed", "false stop" or "contradiction missed".
    """

    what: str
    pattern: Pattern
    minute: int
    window: int
    why: str

    def __repr__(self) -> str:
        at = time.strftime("%a %m-%d %H:%M", time.gmtime(START + 60 * self.minute))
        quiet = self.pattern.quiet(self.minute) / HOUR
        row = (self.what, self.pattern.name, at, self.window // DAY, quiet, self.why)
        return "%s: %s, audited %s over %d days, truly quiet for %.0f h: %s" % row


@dataclass
class Outcome:
    """The audits' results: the counts and the wrong verdicts.

    `due` counts audits that had to report idle. `untold` lists the audits whose history cannot show whether the holder
    works.
    """

    judged: int = 0
    due: int = 0
    flagged: int = 0
    wrong: list[Wrong] = field(default_factory=list)
    untold: list[tuple[Pattern, int]] = field(default_factory=list)

    def count(self, what: str) -> int:
        return sum(one.what == what for one in self.wrong)


def total(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the sum of several outcomes."""
    whole = Outcome()
    for one in outcomes:
        whole.judged += one.judged
        whole.due += one.due
        whole.flagged += one.flagged
        whole.wrong += one.wrong
        whole.untold += one.untold
    return whole


@contextlib.contextmanager
def serve(patterns: Sequence[Pattern], folder: Path) -> Iterator[str]:
    """Serve the patterns' samples from a Prometheus, and yield its address.

    The Prometheus also has the series that the shipped rules record from the samples.
    """

    def history(start: int, first: int, last: int) -> Iterator[str]:
        for pattern in patterns:
            yield from text(pattern, (first - START) // 60, (last - START) // 60)
        yield "# EOF\n"

    start, end = START + 60 * min(pattern.came for pattern in patterns), START + 60 * (MINUTES - 1)
    make_blocks(history, start, end, folder, BLOCK, step=60)
    files = [FILES / "rollups.yml"]
    if any(pattern.dcgm for pattern in patterns):
        files.insert(0, FILES / "rules" / "dcgm.yml")
    record(files, folder, start, end, BLOCK)
    with serve_blocks(folder) as url:
        yield url


def judge(url: str, patterns: Sequence[Pattern], audits: Sequence[tuple[int, int]]) -> Outcome:
    """Run an audit for each (minute, window), and return the outcome."""
    outcome = Outcome()
    for minute, window in audits:
        there = [pattern for pattern in patterns if minute >= pattern.came + DAY]
        states = states_of(there, minute)
        at = START + 60.0 * minute
        order = Order(
            60.0 * window,
            Access(url, timeout_seconds=600),
            end_seconds=at,
            hosts=hosts_of(states),
            hosts_asked=list(states),
            holidays=spans(HOLIDAY_DATES),
        )
        audit = make(order, at)
        stops = stopped(audit, states)
        found = {one.holding.subject.gpu_uuid: one for one in audit.findings}
        for pattern in there:
            judge_one(outcome, pattern, minute, window, found[pattern.uuid], stops.get(pattern.host))
    return outcome


def states_of(patterns: Sequence[Pattern], minute: int) -> dict[str, dict]:
    """Return gpu_info's results at this minute, by host."""
    states: dict[str, dict] = defaultdict(lambda: {"gpus": [], "vgpu_tenants": []})
    for pattern in patterns:
        states[pattern.host]["gpus"] += state(pattern, minute)["gpus"]
    return dict(states)


def seen_with(patterns: Sequence[Pattern], clients: int | None) -> list[Pattern]:
    """Return the patterns with the hosts' reports about connections replaced.

    In the new reports, the hosts have no listening socket and `clients` client connections. If `clients` is None, the
    hosts did not check. The samples do not change, so one history can be audited with different reports.
    """
    seen = []
    for pattern in patterns:
        # Only a socket identifies a holder who waits for clients. If a signal is missing, the grace period is longer.
        if pattern.waits or (pattern.holder.listens and pattern.abandoned is not None):
            continue
        unseen = UNSEEN if clients is None and pattern.holder.clients is not None else 0
        holder = replace(pattern.holder, clients=clients, listens=None if clients is None else False)
        seen.append(replace(pattern, holder=holder, lengthened=pattern.lengthened + unseen))
    return seen


def stopped(audit: Audit, states: dict[str, dict]) -> dict[str, str]:
    """Return each host's workload that may be stopped."""
    found = reclaimable(audit, states, Bounds())
    return {
        one.host: "%s %s may be stopped" % (one.kind, one.name)
        for one in found
        if not one.spared and one.quiet_seconds >= one.stop_quiet_seconds
    }


def judge_one(outcome: Outcome, pattern: Pattern, minute: int, window: int, finding: Finding, stop: str | None) -> None:
    """Compare one verdict with the truth, and add errors to the outcome.

    `stop` describes the workload that may be stopped, or is None.
    """
    word, reason = finding.verdict.word, finding.verdict.reason
    outcome.judged += 1
    if pattern.abandoned is not None and minute >= pattern.abandoned:
        if minute < pattern.deadline:
            return
        # An abandoned server and a holder with clients look like a server that waits. The audit must report them, but
        # not stop them.
        waits = pattern.holder.listens or pattern.holder.clients or pattern.discounted
        flagged = word in (*FLAGS, "standby") if waits else word in FLAGS
        outcome.due += 1
        outcome.flagged += flagged
        if not flagged:
            outcome.wrong.append(Wrong("missed", pattern, minute, window, "%s: %s" % (word, reason)))
        return
    if pattern.contradicts is not None and minute >= pattern.contradicts + DAY:
        if word != "broken_metrics":
            outcome.wrong.append(Wrong("contradiction missed", pattern, minute, window, "%s: %s" % (word, reason)))
    elif pattern.cannot_be_told(minute, window):
        outcome.untold.append((pattern, minute))
        if pattern.asked and stop is not None:
            outcome.wrong.append(Wrong("false stop", pattern, minute, window, stop))
        return
    blamed = word in (BLAME if pattern.span(minute) is not None else FLAGS)
    if blamed:
        outcome.wrong.append(Wrong("false flag", pattern, minute, window, "%s: %s" % (word, reason)))
    if stop is not None:
        outcome.wrong.append(Wrong("false stop", pattern, minute, window, stop))
