# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Watch GPUs for a while before their holders are stopped.

Any activity spares a holder. A workload with bursts, such as a server with rare requests, is idle in most single
readings.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Mapping, Sequence

from ..errors import FleetError
from .checks import place, working

#: A function that returns (index, utilization in percent or None) for each whole GPU, by UUID.
Sample = Callable[[], Mapping[str, "tuple[int, int | None]"]]

#: Interval between samples. NVML averages over at most one second, so little is missed.
PERIOD_SECONDS = 1.0


def watch(
    items: Sequence[Mapping[str, Any]],
    sample: Sample,
    seconds: float,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[str]:
    """Return why each item is spared, or "" if its GPUs were idle.

    All items are watched at the same time, until all are spared or `seconds` have passed. An item is spared if its GPU
    cannot be sampled. NVML reports no utilization for GPU instances. For these, `checks.worked` compares the scans
    before and after.
    """
    reasons = ["" for _item in items]
    ends = now() + seconds
    left = list(range(len(items)))
    while left:
        try:
            seen = sample() if any(_watched(items[number]) for number in left) else {}
        except FleetError as error:
            for number in (number for number in left if _watched(items[number])):
                reasons[number] = "the utilization of its GPU is not known: %s" % error
            seen = {}
        for number in (number for number in left if not reasons[number]):
            reasons[number] = _why(_watched(items[number]), seen)
        left, remaining = [number for number in left if not reasons[number]], ends - now()
        if remaining <= 0 or not left:
            break
        sleep(min(PERIOD_SECONDS, remaining))
    return reasons


def _watched(item: Mapping[str, Any]) -> list[str]:
    return [uuid for uuid, instance in map(place, item["gpus"]) if instance is None]


def _why(uuids: Sequence[str], seen: Mapping[str, tuple[int, int | None]]) -> str:
    for uuid in uuids:
        if uuid not in seen:
            return "%s no longer answers" % uuid
        why = working(*seen[uuid])
        if why:
            return why
    return ""
