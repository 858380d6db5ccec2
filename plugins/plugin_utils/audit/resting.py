# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Apply the idle rule (plugin_utils/idle) to a holding without signs of work.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

from ..idle.rule import GRACE, HOUR_SECONDS, NEW, RARE, RHYTHM, WEEKEND, Policy, limits_seconds, stop_seconds
from ..idle.signals import CLIENTS, missing_groups
from .holdings import is_notebook, runs_processes
from .model import Holding, Quiet

#: Tolerance when quiet times are compared, which have a resolution of one hour.
HOUR_OFF = 1.5 * HOUR_SECONDS


@dataclass(frozen=True)
class Resting:
    """The idle rule's result for a quiet holding.

    `seconds` is the quiet time, and `idle_after_seconds` the quiet time after which the holder counts as idle. `why` is
    the explanation. If a holder has not worked since it started, but is too new for a verdict, `too_early` says so.
    Otherwise, `too_early` is empty.
    """

    seconds: float
    idle_after_seconds: float
    is_idle: bool
    why: str
    too_early: str


def resting(holding: Holding, policy: Policy) -> Resting | None:
    """Return the result of the idle rule, or None if the holding is not quiet.

    A holding is not quiet if its quiet time is unknown or below the grace period.

    A holder's quiet time starts when it took the GPU, even if it has newer processes. Otherwise, a service that
    restarts every night would never be idle. If the server does not know when it took the GPU, the quiet time starts
    with the newest process, and the holder counts as one without history.

    The history is never longer than the newest process's age, because a GPU can get another holder without a pause.
    """
    quiet = holding.quiet
    if quiet is None or quiet.seconds < policy.grace_seconds:
        return None
    held, newest = holding.held_seconds, holding.newest_holder_seconds
    known = list(quiet.signals)
    if any(holder.clients is not None for holder in holding.holders or ()):
        known.append(CLIENTS.name)
    missing = missing_groups(known)
    limits = limits_seconds(
        policy,
        longest_seconds=quiet.longest_seconds,
        history_seconds=min(held or 0.0, held or 0.0 if newest is None else newest),
        missing_signals=len(missing),
    )
    rule = max(limits, key=lambda name: limits[name])
    after = limits[rule]
    since = newest if held is None else held
    blamed = quiet.seconds if since is None else min(quiet.seconds, since)
    never_worked = quiet.whole_window or (since is not None and since <= quiet.seconds + HOUR_OFF)
    is_idle = blamed >= after
    early = ""
    if never_worked and not is_idle:
        early = "No work in the %s since it was taken. Too early for a verdict: idle after %s." % (
            duration(blamed),
            duration(after),
        )
    why = "No sign of work for %s. Its limit is %s: %s. Signals: %s." % (
        quiet_time(quiet),
        duration(after),
        _reason(rule, policy, quiet.longest_seconds, missing),
        ", ".join(known) or "none",
    )
    if missing:
        why += " Not measured: %s." % ", ".join(missing)
    return Resting(quiet.seconds, after, is_idle, why, early)


def _reason(rule: str, policy: Policy, longest_seconds: float, missing: Sequence[str]) -> str:
    """Return why the limit with this name applies."""
    pause = duration(longest_seconds)
    extended = ", longer because of signals that are not measured" if missing else ""
    return {
        GRACE: "the grace period%s" % extended,
        WEEKEND: "a weekend, because it paused for %s before" % pause,
        RHYTHM: "%g times its longest earlier pause of %s" % (policy.rhythm_factor, pause),
        NEW: "a week and more, because its history is shorter than %s" % duration(policy.new_seconds),
        RARE: "two weeks and more, because it paused for %s before" % pause,
    }[rule]


def least_stop_seconds(holding: Holding) -> float:
    """Return the quiet time in seconds before which a holder is not stopped."""
    quiet = holding.quiet
    if quiet is None or runs_processes(holding) is False:
        return 0.0
    held = holding.held_seconds
    never_worked = quiet.whole_window or (held is not None and held <= quiet.seconds + HOUR_OFF)
    # A notebook is no job that runs at the end of a quarter.
    return stop_seconds(
        Policy(), longest_seconds=quiet.longest_seconds, never_worked=never_worked and not is_notebook(holding)
    )


def quiet_time(quiet: Quiet) -> str:
    """Return a quiet time as text. It may have begun before the first sample."""
    return ("at least " if quiet.whole_window else "") + duration(quiet.seconds)


def duration(seconds: float) -> str:
    """Return a duration as text, in hours, or in days from two days on."""
    hours = seconds / HOUR_SECONDS
    return "%s days" % ("%.1f" % (hours / 24)).removesuffix(".0") if hours >= 48 else "%.0f h" % hours
