# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Propose how many GPUs the entries with leases need.

The need at a time is the sum over current leases and waiting requests. Each counts with its larger share of a GPU, of
memory or compute. The proposal covers the need most of the time (`Policy.confidence`). No metric counts requests that
were refused because they did not wait.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from typing import Any, NamedTuple

from ..audit.model import Window
from ..audit.prometheus import Prometheus
from ..counted import counted
from ..numerics import np
from ..sizing.model import Policy
from .model import LeasePool
from .series import Grid

#: Prometheus series for the fields `leased` and `waiting` of Course.
_SERIES = {"leased": "gpu:lease_gpus", "waiting": "gpu:lease_waiting_gpus"}
_POOL = "gpu:lease_pool_gpus"
#: Share above which the pool counts as full, because requests rarely fit exactly.
_FULL_RATIO = 0.9

#: A host's entry: (host, entry).
Place = tuple[str, str]


class Course(NamedTuple):
    """The history of an entry's leases, in GPUs.

    `gpus` is the current number of GPUs. `offered` is the part of them for leases, and NaN without samples.
    """

    step_seconds: int
    gpus: int
    offered: np.ndarray
    leased: np.ndarray
    waiting: np.ndarray


def pools(server: Prometheus, window: Window, selector: str, policy: Policy) -> tuple[tuple[LeasePool, ...], list[str]]:
    """Return a proposal for each entry with leases.

    Returns (proposals, warnings of the server). Raises PrometheusError.
    """
    found, notes = courses(server, window, selector)
    return tuple(propose(host, entry, course, policy) for (host, entry), course in sorted(found.items())), notes


def courses(server: Prometheus, window: Window, selector: str) -> tuple[dict[Place, Course], list[str]]:
    """Return the history of each entry that offers leases now.

    Returns (history by host and entry, warnings of the server). Raises PrometheusError.
    """
    grid = Grid.of(window)
    notes: list[str] = []
    where = "{%s}" % selector

    def read(expression: str) -> dict[Place, np.ndarray]:
        answer = server.query_range(expression, grid.start, grid.end, grid.step)
        notes.extend("%s warns: %s" % (server.name, warning) for warning in answer.warnings)
        rows: dict[Place, np.ndarray] = defaultdict(lambda: np.full(len(grid.times), np.nan))
        for course in answer.courses:
            for at, value in course.values.items():
                index = round((at - grid.start) / grid.step)
                if 0 <= index < len(grid.times) and math.isfinite(value) and value >= 0:
                    rows[course.labels.get("host", ""), course.labels.get("entry", "")][index] = value
        return rows

    # Several exporters can report the same lease, so the inner maximum counts it once.
    of_gpus = "max by (host, entry, gpu_uuid) (min_over_time(%s%s[%ds]))" % (_POOL, where, grid.step)
    offered, number = read("sum by (host, entry) (%s)" % of_gpus), read("count by (host, entry) (%s)" % of_gpus)
    used = {
        name: read(
            "sum by (host, entry) (max by (host, entry, account) (max_over_time(%s%s[%ds])))"
            % (series, where, grid.step)
        )
        for name, series in _SERIES.items()
    }
    found = {}
    for place, row in offered.items():
        # An entry that no longer offers leases has no sample at the window's end.
        current = number[place][-1]
        if math.isfinite(current) and current >= 1:
            # An account without leases has no samples.
            leased, waiting = (np.nan_to_num(used[name][place]) for name in ("leased", "waiting"))
            found[place] = Course(grid.step, int(current), row, leased, waiting)
    return found, notes


def propose(host: str, entry: str, course: Course, policy: Policy) -> LeasePool:
    """Return the proposal for an entry."""
    known = np.isfinite(course.offered)
    offered, leased, waiting = (row[known] for row in (course.offered, course.leased, course.waiting))
    first = int(np.argmax(known))
    covered = float(known[first:].mean())
    seconds = float(known.sum() * course.step_seconds)
    pool = LeasePool(
        host=host,
        entry=entry,
        gpus=course.gpus,
        offered_gpus=_rounded(offered[-1]),
        leased_mean_gpus=_rounded(leased.mean()),
        leased_max_gpus=_rounded(leased.max()),
        waiting_max_gpus=_rounded(waiting.max()),
        free_min_gpus=_rounded(np.maximum(offered - leased, 0).min()),
        waiting_hours=round(float((waiting > 0).sum() * course.step_seconds / 3600), 1),
        hours=round(seconds / 3600, 1),
    )
    if seconds < policy.least_seconds or covered < policy.least_covered_ratio:
        return dataclasses.replace(pool, reason="Too little data: %.1f hours of samples." % (seconds / 3600))
    need = float(np.quantile(leased + waiting, policy.confidence, method="higher"))
    of_one = float(offered[-1]) / course.gpus
    if of_one <= 0:
        return dataclasses.replace(
            pool, reason="Fixed instances and tenants use all GPUs of the entry, so leases get nothing."
        )
    # Metrics are rounded, so 2.0000001 GPUs means 2.
    proposed = math.ceil(need / of_one - 1e-6)
    return dataclasses.replace(
        pool, needed_gpus=_rounded(need), proposed_gpus=proposed, reason=_reason(pool, need, proposed, policy)
    )


def _reason(pool: LeasePool, need: float, proposed: int, policy: Policy) -> str:
    share = "%g %%" % (100 * policy.confidence)
    if not pool.leased_max_gpus and not pool.waiting_max_gpus:
        return "There was no lease and no waiting request in %.1f hours." % pool.hours
    text = "For %s of the time, leases and waiting requests needed at most %.2f GPUs." % (share, need)
    if pool.waiting_hours:
        text += " Requests waited for %.1f of %.1f hours." % (pool.waiting_hours, pool.hours)
    if proposed <= pool.gpus and pool.leased_max_gpus >= _FULL_RATIO * pool.offered_gpus:
        text += " The entry was full at times, and requests that did not wait may have been refused."
    return text


def _rounded(value: Any) -> float:
    return round(float(value), 3)


def to_change(pool: LeasePool) -> str:
    """Return what to change in an entry, as text."""
    if pool.proposed_gpus is None or pool.proposed_gpus == pool.gpus:
        return "no change"
    verb = "grow" if pool.proposed_gpus > pool.gpus else "shrink"
    return "%s from %d to %s" % (verb, pool.gpus, counted(pool.proposed_gpus, "GPU"))
