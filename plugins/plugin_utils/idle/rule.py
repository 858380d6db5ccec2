# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When a quiet GPU is idle: the one rule of audit, reclaim, right-sizing and the benchmark. Pure.

No fixed time is right for a service at night, a notebook at lunch and a weekly job at once. So a quiet time has to be longer than
a grace and longer than what the holder's own history explains.
"""

from __future__ import annotations

from dataclasses import dataclass

HOUR_SECONDS = 3600.0
DAY_SECONDS = 86400.0


@dataclass(frozen=True)
class Policy:
    """Times in seconds.

    `grace_seconds`: nothing that is quiet for less is idle.
    `rhythm_factor`: a quiet time has to be so many times longer than the longest one before it that ended.
    `night_seconds`: a holder that ever paused for so long sleeps, and may take a weekend off though it never did before.
    `weekend_ratio`: so many times the grace are idle on such a holder at the earliest: 64 hours, a weekend.
    `new_seconds`: a holder with less history than this has not shown its weekends, or that it works once a week.
    `new_threshold_seconds`: so it is idle after a week at the earliest, and eight hours for a weekly job that begins late.
    `missing_signal_ratio`: of the grace, added for each group of signals that is not measured.
    """

    grace_seconds: float = 48 * HOUR_SECONDS
    rhythm_factor: float = 2.0
    night_seconds: float = 8 * HOUR_SECONDS
    weekend_ratio: float = 4 / 3
    new_seconds: float = 14 * DAY_SECONDS
    new_threshold_seconds: float = 7 * DAY_SECONDS + 8 * HOUR_SECONDS
    missing_signal_ratio: float = 0.25


def threshold_seconds(
    policy: Policy,
    *,
    longest_seconds: float,
    history_seconds: float,
    missing_signals: int = 0,
) -> float:
    """Return from how long a quiet time on a holder is idle.

    `longest_seconds` is its longest quiet time that ended, `history_seconds` for how long it is known, and `missing_signals` how
    many groups of signals that are not measured.
    """
    grace = policy.grace_seconds * (1 + policy.missing_signal_ratio * missing_signals)
    new = policy.new_threshold_seconds if history_seconds < policy.new_seconds else 0.0
    weekend = policy.weekend_ratio * policy.grace_seconds if longest_seconds >= policy.night_seconds else 0.0
    return max(grace, weekend, policy.rhythm_factor * longest_seconds, new)
