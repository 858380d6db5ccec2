# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a usage pattern is: what its GPU does in each minute, and the truth about its holder.

Minutes count from START. Truth and samples come from one schedule, so that they cannot disagree.
"""

from __future__ import annotations

import calendar
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import Callable, NamedTuple, Sequence

#: Monday 2026-03-09 00:00 UTC. The 30 days to come have Easter (3 and 6 April) and the change of clocks in Europe (29 March) and
#: Australia (5 April).
START = calendar.timegm((2026, 3, 9, 0, 0, 0))
HOUR, DAY, WEEK = 60, 24 * 60, 7 * 24 * 60
#: To Wednesday 2026-04-08 06:00 UTC, and a sample more.
MINUTES = 30 * DAY + 6 * HOUR + 5

#: Quiet for less is never idle, and a weekend is usual as long as there are less than two weeks of the holder's own.
GRACE = 48 * HOUR
WEEKEND = 64 * HOUR
#: By this factor a quiet time must be longer than the longest of the holder's that ended.
FACTOR = 2

#: Good Friday and Easter Monday, as the inventory lists them, and the minutes at which they begin.
HOLIDAY_DATES = ("2026-04-03", "2026-04-06")
HOLIDAYS = (25 * DAY, 28 * DAY)

GIB = float(1 << 30)
CPU_SECONDS = "gpu:process_cpu_seconds_total"


class Use(NamedTuple):
    """What a GPU does: ratios from 0 to 1, watts, bytes per second, CPU cores of its processes, bytes, counts."""

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


#: A process waits, with its memory on the GPU; the same with the clocks kept high.
REST = Use(0, 0, 0, 0, 75, 2e4, 0, 0.002)
WARM_REST = REST._replace(power=130)
TRAIN = Use(0.97, 0.8, 0.35, 0.5, 620, 2e9, 3e10, 6)
NOTEBOOK = Use(0.6, 0.4, 0.1, 0.3, 380, 2e8, 0, 1)
SERVE = Use(0.4, 0.2, 0.1, 0.25, 310, 3e7, 0, 0.8)
#: While a single request is answered.
REQUEST = Use(1, 0.5, 0.2, 0.4, 420, 5e7, 0, 1)
#: No kernel runs: the processors prepare data; copies over PCIe and over NVLink; the video engines decode.
CPU_ONLY = REST._replace(cpu=12)
COPIES = REST._replace(pcie=2e9, power=95, cpu=0.5)
PEER_COPIES = REST._replace(nvlink=4e9, power=110, cpu=0.05)
VIDEO = REST._replace(pcie=6e7, power=100, cpu=0.4)
#: The video engines alone: compressed streams are small, and the driver waits for the engines.
TRANSCODE = REST._replace(codec=0.3, pcie=2e6, power=95, cpu=0.05)

#: Of a minute: what is sampled, and whether the holder works.
Schedule = Callable[[int], "tuple[Use, bool]"]


def blend(use: Use, share: float, rest: Use = REST) -> Use:
    """The average of a minute in which `use` takes this share."""
    return Use(*(share * high + (1 - share) * low for high, low in zip(use, rest)))


@dataclass(frozen=True)
class Holder:
    """Who has the GPU while it is held: the kind and name as gpu_info gives them; `process`: something of his is on the GPU.

    `ahead_seconds` is by how much the host's clock is ahead.
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
    """A GPU, or one instance of it, on a host of its own that has the pattern's name.

    Patterns with the same `beside` are GPUs of one host, held by one process; `index` tells them apart.

    `schedule` is what it does; `spans` when it is held, by default from `came` on: each is another holder, or the same one anew.
    `abandoned` is the minute from which on nothing will ever come, and `waits` a model server that is to be there unasked.
    `sampled` changes a sample: (series, minute, value) to the value, or None for none; `every` so many minutes there is one;
    `exporters` are (job, first minute, last minute) of those that report it. `without` are series that the exporter lacks.
    Up to the minute `renamed` its series have another label `host`.
    `lengthened` minutes are added to the grace for what the exporter does not show. `rare`: the history may not tell it from an
    abandoned one.
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
    #: What a second instance of the GPU does all the time; the power and the traffic of the whole GPU are then this one's.
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
    #: From this minute on its metrics contradict each other, all the time or again and again: a day later it is broken_metrics.
    contradicts: int | None = None
    #: From this minute on no process is on the GPU, whatever the holder is.
    process_ends: int = MINUTES
    #: False where each time of holding is another's: pods of one user that come and go are not.
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
        """The time of holding that the minute is in."""
        place = bisect_right(self._starts, minute) - 1
        return self.held[place] if place >= 0 and minute < self.held[place][1] else None

    def has_process(self, minute: int) -> bool:
        return self.holder.process and minute < self.process_ends and self.span(minute) is not None

    @cached_property
    def _starts(self) -> list[int]:
        return [start for start, _end in self.held]

    @cached_property
    def moments(self) -> tuple[list[Use], list[int]]:
        """What the GPU does in each minute from `came` on, and the minutes of work."""
        held = bytearray(MINUTES)
        for first, last in self.held:
            held[first:last] = b"\1" * (last - first)
        working = MINUTES if self.abandoned is None else self.abandoned
        process = self.process_ends if self.holder.process else 0
        uses, works, made = [], [], {}
        for minute in range(self.came, MINUTES):
            use, work = self.schedule(minute)
            # Schedules take turns among a few uses, which are kept, so that their ids stay theirs.
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
        """The minutes in which the holder really works."""
        return self.moments[1]

    @cached_property
    def cpu_seconds(self) -> list[float]:
        """The CPU time of the processes on the GPU, as a counter, in each minute from `came` on."""
        seconds, made = 0.0, []
        for minute, use in enumerate(self.moments[0], self.came):
            seconds = 0.0 if self.cpu_resets(minute) else seconds + (60 * use.cpu if use.processes else 0)
            made.append(seconds)
        return made

    # --- Truth --------------------------------------------------------------------------------------------------------

    def quiet(self, minute: int) -> int:
        """For how many minutes there was no work at this one, as far as the present holder is concerned."""
        place = bisect_right(self.works, minute)
        last = self.works[place - 1] + 1 if place else self.came
        return max(0, minute - max(last, self.since(minute)))

    def since(self, minute: int) -> int:
        """Since when the holder of this minute has a history: what was before him was another's."""
        span = None if self.same_user else self.span(minute)
        return span[0] if span else self.came

    @cached_property
    def _pauses(self) -> tuple[list[int], list[int]]:
        """The minutes in which work began again, and how long it had rested by then."""
        again = [(now, now - before - 1) for before, now in zip(self.works, self.works[1:]) if now > before + 1]
        return [minute for minute, _length in again], [length for _minute, length in again]

    def longest(self, first: int, last: int) -> int:
        """The longest quiet time, in minutes, that ended between these two."""
        begin = max(first, self.since(last))
        place = bisect_right(self.works, begin - 1)
        if place == len(self.works) or self.works[place] > last:
            return 0
        minutes, lengths = self._pauses
        within = lengths[bisect_right(minutes, self.works[place]) : bisect_right(minutes, last)]
        return max([self.works[place] - begin, *within])

    def usual(self, first: int, last: int) -> int:
        """What an idle time is held against: with under two weeks of history a weekend at least."""
        longest = self.longest(first, last)
        return max(longest, WEEKEND) if last - max(first, self.since(last)) < 2 * WEEK else longest

    @property
    def deadline(self) -> int | None:
        """The minute by which it must be called idle; None if never."""
        if self.abandoned is None:
            return None
        return self.abandoned + GRACE + self.lengthened + FACTOR * self.usual(0, self.abandoned)

    def cannot_be_told(self, minute: int, window: int) -> bool:
        """Whether a window of so many minutes has nothing that tells this holder, who works, from one who left.

        Days off that the inventory lists count for nothing.
        """
        if self.waits or self.abandoned is not None or self.span(minute) is None:
            return False
        quiet = self.quiet(minute)
        quiet -= sum(max(0, min(minute, day + DAY) - max(minute - quiet, day)) for day in HOLIDAYS)
        return quiet > GRACE + FACTOR * self.usual(minute - window, minute)
