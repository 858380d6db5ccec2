# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A holding that shows no sign of work, by the idle rule (plugin_utils/idle). Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ..idle.rule import HOUR_SECONDS, Policy, threshold_seconds
from ..idle.signals import CLIENTS, missing_groups
from .model import Holding

#: Quiet times are known to the hour.
_HOUR_OFF = 1.5 * HOUR_SECONDS


@dataclass(frozen=True)
class Resting:
    """`seconds` it has been quiet, `idle_after_seconds` from when on that is idle, `why` in words.

    `too_early` says in words why nothing can be said of a holder that has not worked since it came; empty where that is not so.
    """

    seconds: float
    idle_after_seconds: float
    is_idle: bool
    why: str
    too_early: str


def resting(holding: Holding, policy: Policy) -> Resting | None:
    """Return how it rests; None where it is not quiet for the grace, or that is not known.

    A holder is blamed for the time since it came only, and has no longer history than its newest process: the GPU may have gone
    from hand to hand without a pause. Where the server knows since when the GPU is held, a process that began later does not make
    the blame shorter, or a service that restarts every night would never be idle. Where it is not known, there is no history.
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
        early = "No work in the %s since it is held: too early to say, idle from %s on." % (
            duration(blamed),
            duration(after),
        )
    pause = "its longest pause before was %s" % duration(quiet.longest_seconds)
    why = "No sign of work for %s; %s, so it is idle from %s on. Signals: %s." % (
        duration(quiet.seconds),
        pause if quiet.longest_seconds else "no earlier pause is known",
        duration(after),
        ", ".join(known) or "none",
    )
    if missing:
        why += " Not measured: %s." % ", ".join(missing)
    return Resting(quiet.seconds, after, is_idle, why, early)


def duration(seconds: float) -> str:
    """Return a length of time in hours, from two days on in days."""
    hours = seconds / HOUR_SECONDS
    return "%.1f days" % (hours / 24) if hours >= 48 else "%.0f h" % hours
