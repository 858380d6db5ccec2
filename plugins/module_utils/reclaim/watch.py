# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Watch GPUs and GPU instances for a while before their holders are stopped.

Any activity spares a holder. Single readings are not enough, because a workload with bursts, such as a server with rare
requests, is idle in most of them.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Mapping, Sequence

from ..errors import FleetError
from ..frozen import frozen
from ..model import Place, Work
from .checks import ENGINES, LONG_KERNELS, SHORT_KERNELS, TRANSFERS, place

#: A function that watches these places for some seconds and returns their work, without GPUs that fail.
Measure = Callable[[Sequence[Place], float], Mapping[Place, Work]]

#: Length of one measurement in seconds. A run that changes the host waits until it ends.
PERIOD_SECONDS = 10.0

#: Minimum values that count as work, as in the audit (docs/audit-idle.md).
KERNELS_RATIO = 0.001
ENGINES_RATIO = BANDWIDTH_RATIO = 0.01
PCIE_BYTES_PER_SECOND = 1e7
NVLINK_BYTES_PER_SECOND = 1e6
#: Maximum power of a card at rest, relative to its lowest hour. The values were chosen, not measured.
REST_RATIO, REST_WATTS = 1.1, 5.0


@frozen
class Watched:
    """The result for an item.

    `why` describes its work, or is empty. `unmeasured` has the kinds of work that nothing measured.
    """

    why: str = ""
    unmeasured: tuple[str, ...] = ()


def watch(
    items: Sequence[Mapping[str, Any]],
    measure: Measure,
    seconds: float,
    now: Callable[[], float] = time.monotonic,
) -> list[Watched]:
    """Watch the GPUs and instances of all items at the same time.

    Ends when all items work, or after `seconds`. An item counts as working if one of its places cannot be measured.
    """
    reasons = ["" for _item in items]
    wanted = [[place(text) for text in item["gpus"]] for item in items]
    rest = {uuid: watts for item in items for uuid, watts in (item.get("rest_watts") or {}).items()}
    kernels: dict[Place, float] = {}
    unmeasured: list[set[str]] = [set() for _item in items]
    ends = now() + seconds
    left = list(range(len(items)))
    while left:
        places = sorted({one for number in left for one in wanted[number]}, key=repr)
        try:
            works = measure(places, max(0.0, min(PERIOD_SECONDS, ends - now())))
        except FleetError as error:
            works = {}
            for number in left:
                reasons[number] = "the utilization of its GPU is not known: %s" % error
        for one, measured in works.items():
            kernels[one] = kernels.get(one, 0.0) + (measured.kernels_ratio or 0.0) * measured.seconds
        for number in (number for number in left if not reasons[number]):
            for one in wanted[number]:
                if one not in works:
                    reasons[number] = reasons[number] or "%s no longer answers" % one[0]
                    continue
                work = works[one]
                reasons[number] = reasons[number] or _why(work, kernels[one], max(seconds, work.seconds))
                unmeasured[number].update(_unmeasured(work, rest.get(one[0])))
        left = [number for number in left if not reasons[number]]
        if now() >= ends:
            break
    return [Watched(why, () if why else tuple(sorted(unmeasured[number]))) for number, why in enumerate(reasons)]


def _why(work: Work, kernel_seconds: float, seconds: float) -> str:
    """Return the work that one measurement shows, or "".

    `kernel_seconds` is the total time with kernels in all measurements, `seconds` their planned length.
    """
    if work.utilization_percent:
        return "gpu %d is in use now (%d %%)" % (work.index, work.utilization_percent)
    if kernel_seconds >= KERNELS_RATIO * seconds:
        return "gpu %d ran kernels for %.2g s" % (work.index, kernel_seconds)
    if (work.engines_ratio or 0.0) >= ENGINES_RATIO:
        return "an engine for video, JPEG or optical flow of gpu %d is in use" % work.index
    if (work.bandwidth_ratio or 0.0) >= BANDWIDTH_RATIO:
        return "the memory of gpu %d is in use" % work.index
    for name, value, least in (
        ("PCIe", work.pcie_bytes_per_second, PCIE_BYTES_PER_SECOND),
        ("NVLink", work.nvlink_bytes_per_second, NVLINK_BYTES_PER_SECOND),
    ):
        if (value or 0.0) >= least:
            return "gpu %d transfers %.0f MB/s over %s" % (work.index, (value or 0.0) / 1e6, name)
    return ""


def _unmeasured(work: Work, rest_watts: float | None) -> set[str]:
    """Return the kinds of work that this measurement could not detect.

    A long kernel is detected, because it keeps the card above its power at rest.
    """
    kinds = set()
    if work.kernels_ratio is None:
        kinds.add(SHORT_KERNELS)
        if work.utilization_percent is None and not _rests(work.watts, rest_watts):
            kinds.add(LONG_KERNELS)
    if work.engines_ratio is None:
        kinds.add(ENGINES)
    if work.pcie_bytes_per_second is None:
        kinds.add(TRANSFERS)
    return kinds


def _rests(watts: float | None, rest_watts: float | None) -> bool:
    if watts is None or rest_watts is None:
        return False
    return watts <= max(REST_RATIO * rest_watts, rest_watts + REST_WATTS)
