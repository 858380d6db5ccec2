# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Watch GPUs for a while before what holds them is stopped: any sample of activity spares it.

What works in bursts, as a server of seldom requests does, is at rest in most single readings.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Mapping, Sequence

from ..errors import FleetError
from .checks import place, working

#: Gives by UUID (index, utilisation in percent or None where the driver does not tell it), of whole GPUs.
Sample = Callable[[], Mapping[str, "tuple[int, int | None]"]]

#: NVML's figure is of the last second at most: one sample a second misses little.
PERIOD_SECONDS = 1.0


def watch(
    items: Sequence[Mapping[str, Any]],
    sample: Sample,
    seconds: float,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[str]:
    """Return for each item why it is spared; empty for one whose GPUs were at rest for `seconds`.

    All items are watched together. One whose GPU works is watched no longer, and the watch ends when none is left.
    An item on a GPU that cannot be sampled is spared. Of a GPU instance NVML tells no utilisation: there the time passes without
    a sample, and what its processes did meanwhile shows in the looks before and behind it (checks.worked).
    """
    reasons = ["" for _item in items]
    ends = now() + seconds
    left = list(range(len(items)))
    while left:
        try:
            seen = sample() if any(_watched(items[number]) for number in left) else {}
        except FleetError as error:
            for number in (number for number in left if _watched(items[number])):
                reasons[number] = "whether its GPU works is not known: %s" % error
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
            return "%s does not answer any more" % uuid
        why = working(*seen[uuid])
        if why:
            return why
    return ""
