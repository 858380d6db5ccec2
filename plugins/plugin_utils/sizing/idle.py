# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who holds a GPU's memory and does nothing with it. Pure; at each moment only what was seen until then counts.

A workload is idle once it is quiet for longer than three things would explain: what is unknown of a day, its own
longest quiet time with an end, and the fleet's. One fixed time would have to be right for a service at night, a
notebook at lunch and a job between two steps at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .model import DAY_SECONDS, Fleet, Policy


@dataclass(frozen=True)
class Quiet:
    """Of one workload, at the fleet's last sample. Seconds; None where there is no data or it is not quiet."""

    name: str
    quiet_seconds: float | None
    #: From this on it counts as idle.
    threshold_seconds: float
    idle: bool
    reason: str


@dataclass(frozen=True, eq=False)
class Course:
    """(n, t) each: seconds quiet so far (0 where it works, holds nothing or is not seen), and what it would take."""

    quiet: np.ndarray
    threshold: np.ndarray

    @property
    def idle(self) -> np.ndarray:
        return (self.quiet > 0) & (self.quiet >= self.threshold)


def course(fleet: Fleet, policy: Policy | None = None) -> Course:
    """What was known at each time of the fleet. The experience of the fleet is that of all workloads in it."""
    policy = policy or Policy()
    count, length = fleet.duty.shape
    memory = fleet.whole_memory()
    quiet, threshold = np.zeros((count, length)), np.zeros((count, length))
    since, seen_at = np.full(count, np.nan), np.full(count, -np.inf)
    longest, known, theirs = np.zeros(count), np.zeros(count), 0.0
    for place, now in enumerate(fleet.times):
        duty = fleet.duty[:, place]
        there = ~np.isnan(duty)
        # What happened while nothing was seen is not known: the quiet time has to begin again.
        since[(now - seen_at) > policy.idle_missing_seconds + fleet.step] = np.nan
        works = there & (duty >= policy.working_percent)
        ended = works & ~np.isnan(since)
        if ended.any():
            longest[ended] = np.maximum(longest[ended], now - since[ended])
            theirs = float(np.quantile(longest[longest > 0], policy.idle_fleet_quantile))
        since[works | (memory[:, place] == 0)] = np.nan
        begins = there & ~works & np.isnan(since) & (memory[:, place] > 0)
        since[begins] = now
        seen_at[there] = now
        known += there
        day = np.minimum(1.0, known * fleet.step / DAY_SECONDS)
        floor = policy.idle_unknown_seconds + day * (policy.idle_known_seconds - policy.idle_unknown_seconds)
        threshold[:, place] = np.maximum(floor, policy.idle_gap_factor * np.maximum(longest, theirs))
        quiet[:, place] = np.where(np.isnan(since), 0.0, now - since)
    return Course(quiet, threshold)


def find_idle(fleet: Fleet, policy: Policy | None = None) -> tuple[Quiet, ...]:
    """One for each workload, sorted by name, as things are at the last sample; no data is never idle."""
    policy = policy or Policy()
    went = course(fleet, policy)
    found = []
    for i, name in enumerate(fleet.names):
        if not np.any(~np.isnan(fleet.duty[i])):
            found.append(Quiet(name, None, policy.idle_unknown_seconds, False, "no data"))
            continue
        quiet, threshold = float(went.quiet[i, -1]), float(went.threshold[i, -1])
        idle = bool(went.idle[i, -1])
        hours = (quiet / 3600, threshold / 3600)
        if idle:
            reason = "holds memory and did nothing for %.1f hours; %.1f would be usual at most" % hours
        elif quiet > 0:
            reason = "quiet for %.1f hours, idle after %.1f" % hours
        else:
            reason = "works, holds nothing, or was not seen of late"
        found.append(Quiet(name, quiet or None, threshold, idle, reason))
    return tuple(found)


def first_flags(fleet: Fleet, policy: Policy | None = None) -> np.ndarray:
    """(n,) index of the first sample at which each workload counted as idle, -1 where there is none."""
    idle = course(fleet, policy).idle
    return np.where(idle.any(axis=1), idle.argmax(axis=1), -1) if idle.size else np.full(len(fleet.names), -1)
