# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define usage patterns: a GPU's activity by minute, and whether its holder works.

Minutes count from START. The truth and the samples come from the same schedule, so they cannot contradict each other.
"""

from __future__ import annotations

import calendar
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Callable, NamedTuple, Sequence

#: Monday 2026-03-09 00:00 UTC. The following 30 days include Easter (3 and 6 April), and the change to summer or winter
#: time in Europe (29 March) and Australia (5 April).
START = calendar.timegm((2026, 3, 9, 0, 0, 0))
HOUR, DAY, WEEK = 60, 24 * 60, 7 * 24 * 60
#: The end is Wednesday 2026-04-08 06:00 UTC, and a few samples more.
MINUTES = 30 * DAY + 6 * HOUR + 5

#: An idle GPU's minimum quiet time. If the holder's history is shorter than two weeks, a weekend counts as a usual
#: pause.
GRACE = 48 * HOUR
WEEKEND = 64 * HOUR
#: Half of the quiet time, without the grace period, after which a holder with a shorter history counts as idle: 184
#: hours.
NEW = 68 * HOUR
#: A GPU is idle only after a pause that is this many times longer than the holder's longest earlier pause.
FACTOR = 2

#: Good Friday and Easter Monday, as the inventory lists them, and their first minutes.
HOLIDAY_DATES = ("2026-04-03", "2026-04-06")
HOLIDAYS = (25 * DAY, 28 * DAY)

GIB = float(1 << 30)
CPU_SECONDS = "gpu:process_cpu_seconds_total"
BUSY_SECONDS = "gpu:busy_seconds_total"


class Use(NamedTuple):
    """A GPU's activity in one minute.

    The fields from busy to bandwidth, and codec, are ratios from 0 to 1. power is in watts. pcie and nvlink are in
    bytes per second. cpu is in cores, and memory in bytes. processes and held are counts.
    """

    busy: float
    sm: float
    tensor: float
    bandwidth: float
    power: float
    pcie: float
    nvlink: float
    cpu: float
    memory: float = 0.0
    processes: float = 0.0
    held: float = 0.0
    codec: float = 0.0
    #: The exact share of time with kernels, for exporters that count it.
    counted: float = 0.0


#: The activity while a process waits and keeps its memory on the GPU. WARM_REST is the same activity with high clocks.
REST = Use(0, 0, 0, 0, 75, 2e4, 0, 0.002)
WARM_REST = REST._replace(power=130)
TRAIN = Use(0.97, 0.8, 0.35, 0.5, 620, 2e9, 3e10, 6)
NOTEBOOK = Use(0.6, 0.4, 0.1, 0.3, 380, 2e8, 0, 1)
SERVE = Use(0.4, 0.2, 0.1, 0.25, 310, 3e7, 0, 0.8)
#: The activity while the GPU processes one request.
REQUEST = Use(1, 0.5, 0.2, 0.4, 420, 5e7, 0, 1)
#: Work without a kernel: the CPU prepares data, the GPU copies data over PCIe or NVLink, or the video engines decode.
CPU_ONLY = REST._replace(cpu=12)
COPIES = REST._replace(pcie=2e9, power=95, cpu=0.5)
PEER_COPIES = REST._replace(nvlink=4e9, power=110, cpu=0.05)
VIDEO = REST._replace(pcie=6e7, power=100, cpu=0.4)
#: Only the video engines work. Compressed streams are small, and the driver waits for the engines.
TRANSCODE = REST._replace(codec=0.3, pcie=2e6, power=95, cpu=0.05)

#: Maps a minute to the activity, and to whether the holder works.
Schedule = Callable[[int], "tuple[Use, bool]"]


def blend(use: Use, share: float, rest: Use = REST) -> Use:
    """Return the average activity of a minute in which `use` has this share."""
    return Use(*(share * high + (1 - share) * low for high, low in zip(use, rest)))


@dataclass(frozen=True)
class Holder:
    """A GPU's holder: kind and name as in gpu_info.

    `process` is true if the holder has a process on the GPU. `ahead_seconds` is the time by which the host's clock is
    ahead.
    """

    name: str = ""
    kind: str = "container"
    process: bool = True
    job: str | None = None
    listens: bool | None = None
    clients: int | None = None
    ahead_seconds: float = 0.0


@dataclass(frozen=True, repr=False)
class Pattern:
    """A GPU, or one of its instances, on a separate host with the pattern's name.

    schedule: the activity.
    spans: the times when the GPU is held. By default, it is held from `came` on. Each span is a new holder, unless
        `same_user` is true.
    abandoned: the minute from which the holder will never work again.
    waits: true for a model server that waits for requests and must be kept.
    sampled: changes a sample from (series, minute, value), or returns None to drop it.
    every: minutes between samples.
    exporters: (job, first minute, last minute) for each exporter that reports the GPU.
    without: series that the exporter lacks.
    renamed: until this minute, the series have another label `host`.
    lengthened: minutes that are added to the grace period because signals are missing.
    rare: true if the history may look like the history of an abandoned GPU.
    beside: patterns with the same value are GPUs of one host that one process holds.
    index: the GPU's index on that host.
    """

    name: str
    schedule: Schedule
    holder: Holder = Holder()
    came: int = 0
    spans: Sequence[tuple[int, int]] = ()
    abandoned: int | None = None
    waits: bool = False
    memory_gib: float = 30
    instance: str = ""
    #: The constant activity of the GPU's second instance. If this field has a value, all of the GPU's power and traffic
    #: come from this instance.
    neighbour: Use | None = None
    dcgm: bool = False
    sampled: Callable[[str, int, float], float | None] | None = None
    every: int = 1
    exporters: Sequence[tuple[str, int, int]] = (("gpu", 0, MINUTES),)
    without: frozenset[str] = frozenset()
    cpu_resets: Callable[[int], bool] = lambda minute: False
    renamed: int = 0
    lengthened: int = 0
    rare: bool = False
    beside: str = ""
    index: int = 0
    #: From this minute on, the metrics contradict each other, permanently or repeatedly. One day later, the verdict
    #: must be broken_metrics.
    contradicts: int | None = None
    #: From this minute on, the GPU has no process, even if the holder is a process.
    process_ends: int = MINUTES
    #: Whether the exporter counts the time with kernels, and reports the total.
    counts: bool = False
    #: Whether someone must ask the owner before a stop, even if the GPU looks abandoned.
    asked: bool = False
    #: Whether each pause ends with kernels that are not the holder's work. The verdict may then be standby.
    discounted: bool = False
    #: Whether a metric or a pause is within a factor of three of its threshold.
    near: bool = False
    #: Whether all spans belong to one holder. If one user's pods come and go, they are the same holder.
    same_user: bool = True

    def __repr__(self) -> str:
        return self.name

    @property
    def uuid(self) -> str:
        return "GPU-" + self.name

    @property
    def host(self) -> str:
        return self.beside or self.name

    @cached_property
    def held(self) -> Sequence[tuple[int, int]]:
        return self.spans or ((self.came, MINUTES),)

    def span(self, minute: int) -> tuple[int, int] | None:
        """Return the span that contains the minute."""
        place = bisect_right(self._starts, minute) - 1
        return self.held[place] if place >= 0 and minute < self.held[place][1] else None

    def has_process(self, minute: int) -> bool:
        return self.holder.process and minute < self.process_ends and self.span(minute) is not None

    @cached_property
    def _starts(self) -> list[int]:
        return [start for start, _end in self.held]

    @cached_property
    def moments(self) -> tuple[list[Use], list[int]]:
        """Return each minute's activity from `came` on, and the minutes of work."""
        held = bytearray(MINUTES)
        for first, last in self.held:
            held[first:last] = b"\1" * (last - first)
        working = MINUTES if self.abandoned is None else self.abandoned
        process = self.process_ends if self.holder.process else 0
        uses, works, made = [], [], {}
        for minute in range(self.came, MINUTES):
            use, work = self.schedule(minute)
            # A schedule has few activities. Keep them alive, so that their ids stay unique.
            key = (id(use), held[minute], minute < process)
            if key not in made:
                made[key] = use, self._with_holder(use, bool(held[minute]), minute < process)
            uses.append(made[key][1])
            if work and held[minute] and minute < working:
                works.append(minute)
        return uses, works

    def _with_holder(self, use: Use, held: bool, process: bool) -> Use:
        return (use if held else REST)._replace(
            memory=(self.memory_gib if held and process else 0.5) * GIB,
            processes=float(held and process),
            held=float(held and self.holder.kind != "process"),
        )

    @property
    def works(self) -> list[int]:
        """Return the minutes in which the holder works."""
        return self.moments[1]

    @cached_property
    def cpu_seconds(self) -> list[float]:
        """Return the CPU time of the GPU's processes, by minute from `came` on."""
        seconds, made = 0.0, []
        for minute, use in enumerate(self.moments[0], self.came):
            seconds = 0.0 if self.cpu_resets(minute) else seconds + (60 * use.cpu if use.processes else 0)
            made.append(seconds)
        return made

    @cached_property
    def busy_seconds(self) -> list[float]:
        """Return the time with kernels, by minute from `came` on."""
        return list(accumulate(60 * use.counted for use in self.moments[0]))

    # --- Truth --------------------------------------------------------------------------------------------------------

    def quiet(self, minute: int) -> int:
        """Return for how many minutes the current holder has not worked."""
        place = bisect_right(self.works, minute)
        last = self.works[place - 1] + 1 if place else self.came
        return max(0, minute - max(last, self.since(minute)))

    def since(self, minute: int) -> int:
        """Return the minute at which this holder's history starts.

        Earlier samples belong to another holder.
        """
        span = None if self.same_user else self.span(minute)
        return span[0] if span else self.came

    @cached_property
    def _pauses(self) -> tuple[list[int], list[int]]:
        """Return the minutes in which work resumed, and the lengths of earlier pauses."""
        again = [(now, now - before - 1) for before, now in zip(self.works, self.works[1:]) if now > before + 1]
        return [minute for minute, _length in again], [length for _minute, length in again]

    def longest(self, first: int, last: int) -> int:
        """Return the longest pause in minutes that ended between `first` and `last`."""
        begin = max(first, self.since(last))
        place = bisect_right(self.works, begin - 1)
        if place == len(self.works) or self.works[place] > last:
            return 0
        minutes, lengths = self._pauses
        within = lengths[bisect_right(minutes, self.works[place]) : bisect_right(minutes, last)]
        return max([self.works[place] - begin, *within])

    def usual(self, first: int, last: int) -> int:
        """Return the usual pause, with which the audit compares a quiet time.

        With less than two weeks of history, the pause is at least half of a week and 16 hours, because the holder may
        run once a week.
        """
        longest = self.longest(first, last)
        return max(longest, NEW) if last - max(first, self.since(last)) < 2 * WEEK else longest

    @property
    def deadline(self) -> int | None:
        """Return the minute by which the verdict must be idle, or None if never."""
        if self.abandoned is None:
            return None
        return self.abandoned + GRACE + self.lengthened + FACTOR * self.usual(0, self.abandoned)

    def cannot_be_told(self, minute: int, window: int) -> bool:
        """Return whether this working holder looks like a holder who left for good.

        `window` is in minutes. The inventory's days off do not count as quiet.
        """
        if self.waits or self.abandoned is not None or self.span(minute) is None:
            return False
        quiet = self.quiet(minute)
        quiet -= sum(max(0, min(minute, day + DAY) - max(minute - quiet, day)) for day in HOLIDAYS)
        return quiet > GRACE + FACTOR * self.usual(minute - window, minute)
