# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Apply the idle rule (plugin_utils/idle) to a holding without signs of work.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..idle.rule import HOUR_SECONDS, Policy, threshold_seconds
from ..idle.signals import CLIENTS, missing_groups
from .model import Holding

#: Tolerance of quiet times, which are known to the hour.
_HOUR_OFF = 1.5 * HOUR_SECONDS


@dataclass(frozen=True)
class Resting:
    """A quiet holding: `seconds` of quiet time, `idle_after_seconds` (the limit of idle), and `why` as text.

    `too_early` explains why a holder that has not worked since it started has no verdict yet. Empty otherwise.
    """

    seconds: float
    idle_after_seconds: float
    is_idle: bool
    why: str
    too_early: str


def resting(holding: Holding, policy: Policy) -> Resting | None:
    """Return the quiet state, or None if it was not quiet for the grace or that is unknown.

    A holder is blamed only for the time since it started. Its history is no longer than the age of its newest process,
    because a GPU can change hands without a pause. If the server knows since when the GPU is held, newer processes do not
    shorten the blame: otherwise a service that restarts every night would never be idle. If not, there is no history.
    """
    quiet = holding.quiet
    if quiet is None or quiet.seconds < policy.grace_seconds:
        return None
    held, newest = holding.held_seconds, holding.newest_holder_seconds
    known = list(quiet.signals)
    if any(holder.clients is not None for holder in holding.holders or ()):
        known.append(CLIENTS.name)
    missing = missing_groups(known)
    after = threshold_seconds(
        policy,
        longest_seconds=quiet.longest_seconds,
        history_seconds=min(held or 0.0, held or 0.0 if newest is None else newest),
        missing_signals=len(missing),
    )
    since = newest if held is None else held
    blamed = quiet.seconds if since is None else min(quiet.seconds, since)
    never_worked = quiet.whole_window or (since is not None and since <= quiet.seconds + _HOUR_OFF)
    is_idle = blamed >= after
    early = ""
    if never_worked and not is_idle:
        early = "No work in the %s since it is held. Too early for a verdict: idle after %s." % (
            duration(blamed),
            duration(after),
        )
    pause = "its longest earlier pause was %s" % duration(quiet.longest_seconds)
    why = "No sign of work for %s; %s, so it is idle after %s. Signals: %s." % (
        duration(quiet.seconds),
        pause if quiet.longest_seconds else "no earlier pause is known",
        duration(after),
        ", ".join(known) or "none",
    )
    if missing:
        why += " Not measured: %s." % ", ".join(missing)
    return Resting(quiet.seconds, after, is_idle, why, early)


def duration(seconds: float) -> str:
    """Return a length of time in hours, or in days from two days on."""
    hours = seconds / HOUR_SECONDS
    return "%.1f days" % (hours / 24) if hours >= 48 else "%.0f h" % hours
