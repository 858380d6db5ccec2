# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define the idle rule of audit, reclaim, right-sizing and the benchmark. Pure.

No fixed limit is right for services at night, notebooks at lunch and weekly jobs. So a holder is idle only if its quiet
time reaches a grace period, and exceeds the holder's own earlier pauses by a factor.
"""

from __future__ import annotations

from dataclasses import dataclass

HOUR_SECONDS = 3600.0
DAY_SECONDS = 86400.0


@dataclass(frozen=True)
class Policy:
    """Limits of the idle rule. Times are in seconds.

    `grace_seconds`: minimum quiet time of any holder.
    `rhythm_factor`: minimum quiet time as a multiple of the holder's longest earlier quiet time.
    `night_seconds`: minimum earlier pause of a holder that may also pause for a weekend.
    `weekend_ratio`: minimum quiet time of such a holder, as a multiple of the grace. The default is 64 hours, a weekend.
    `new_seconds`: minimum length of a history that contains weekends and weekly jobs.
    `new_threshold_seconds`: minimum quiet time of a holder with a shorter history. The default is a week, plus 16 hours for
    a weekly job that starts late.
    `rare_seconds`: minimum earlier pause of a holder that may also work only every second week.
    `rare_threshold_seconds`: minimum quiet time of such a holder. The default is two weeks and a day.
    `quarter_seconds`: minimum quiet time before a stop of a holder that has never worked.
    `missing_signal_ratio`: share of the grace that is added for each group of signals that is not measured.
    """

    grace_seconds: float = 48 * HOUR_SECONDS
    rhythm_factor: float = 2.0
    night_seconds: float = 8 * HOUR_SECONDS
    weekend_ratio: float = 4 / 3
    new_seconds: float = 14 * DAY_SECONDS
    new_threshold_seconds: float = 7 * DAY_SECONDS + 16 * HOUR_SECONDS
    rare_seconds: float = 4 * DAY_SECONDS
    rare_threshold_seconds: float = 15 * DAY_SECONDS
    missing_signal_ratio: float = 0.25
    quarter_seconds: float = 100 * DAY_SECONDS


#: Names of the limits that apply to a holder.
GRACE, WEEKEND, RHYTHM, NEW, RARE = "grace", "weekend", "rhythm", "new", "rare"


def limits_seconds(
    policy: Policy,
    *,
    longest_seconds: float,
    history_seconds: float,
    missing_signals: int = 0,
) -> dict[str, float]:
    """Return each limit of a holder in seconds.

    A holder is idle after the longest limit. A limit that does not apply is 0.

    `longest_seconds` is the holder's longest earlier quiet time. `history_seconds` is the length of the holder's history.
    `missing_signals` is the number of groups of signals that are not measured.
    """
    grace = policy.grace_seconds * (1 + policy.missing_signal_ratio * missing_signals)
    new = policy.new_threshold_seconds if history_seconds < policy.new_seconds else 0.0
    weekend = policy.weekend_ratio * policy.grace_seconds if longest_seconds >= policy.night_seconds else 0.0
    rare = policy.rare_threshold_seconds if longest_seconds >= policy.rare_seconds else 0.0
    return {GRACE: grace, WEEKEND: weekend, RHYTHM: policy.rhythm_factor * longest_seconds, NEW: new, RARE: rare}


def threshold_seconds(
    policy: Policy,
    *,
    longest_seconds: float,
    history_seconds: float,
    missing_signals: int = 0,
) -> float:
    """Return the quiet time in seconds after which a holder is idle.

    The arguments are those of `limits_seconds`.
    """
    limits = limits_seconds(
        policy,
        longest_seconds=longest_seconds,
        history_seconds=history_seconds,
        missing_signals=missing_signals,
    )
    return max(limits.values())


def stop_seconds(policy: Policy, *, longest_seconds: float, never_worked: bool = False) -> float:
    """Return the minimum quiet time in seconds before a stop.

    It is 0 if the quiet time of an idle holder is enough. A holder that has always worked, such as a training run, may
    pause for the first time. Its owner is notified when it is idle, but needs some days to answer. A holder that has
    never worked may be a job at the end of a quarter.
    """
    if never_worked:
        return policy.quarter_seconds
    return policy.new_threshold_seconds if longest_seconds < policy.night_seconds else 0.0
