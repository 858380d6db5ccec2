# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define patterns of holders who work, and of servers that wait for requests.

The audit must never report any of them as idle or stop them.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace
from functools import partial
from typing import Callable, Sequence

from tests.audit.idle_model import (
    COPIES,
    CPU_ONLY,
    CPU_SECONDS,
    DAY,
    HOLIDAYS,
    HOUR,
    MINUTES,
    NOTEBOOK,
    PEER_COPIES,
    REQUEST,
    REST,
    SERVE,
    TRAIN,
    TRANSCODE,
    VIDEO,
    WARM_REST,
    WEEK,
    Holder,
    Pattern,
    Schedule,
    Use,
    blend,
)

When = Callable[[int], bool]

#: Offsets from UTC in minutes before and after a clock change, and the time of the change in minutes since START.
BERLIN = (60, 120, 20 * DAY + 1 * HOUR)
SYDNEY = (660, 600, 26 * DAY + 16 * HOUR)
RIYADH = (180, 180, 0)

#: Days since START.
GOOD_FRIDAY, EASTER_MONDAY = (minute // DAY for minute in HOLIDAYS)
WEEKDAYS = (0, 1, 2, 3, 4)
#: Series that show kernels, SMs, tensor cores and memory bandwidth.
ACTIVITY = ("gpu:busy_ratio", "gpu:compute_active_ratio", "gpu:sm_active_ratio", "gpu:tensor_active_ratio",
            "gpu:memory_bandwidth_active_ratio")  # fmt: skip
PROFILING = frozenset(("gpu:sm_active_ratio", "gpu:tensor_active_ratio", "gpu:memory_bandwidth_active_ratio"))
#: Series that only the hosts report.
HOST_SERIES = frozenset(("gpu:held", "gpu:processes", CPU_SECONDS))
TRAFFIC = frozenset(("gpu:pcie_bytes_per_second", "gpu:nvlink_bytes_per_second", CPU_SECONDS))


# --- times ----------------------------------------------------------------------------------------------------------


def hours(start: float, end: float, days: Sequence[int] = range(7), zone=BERLIN, off: Sequence[int] = ()) -> When:
    """Return whether a minute is between two local hours on these weekdays.

    0 is Monday. The days `off` (since START) do not count. If `end` is before `start`, `end` is on the next day.
    """
    span = (end - start) % 24 or 24

    def when(minute: int) -> bool:
        local = minute + zone[minute >= zone[2]]
        day, rest = divmod(local - start * HOUR, DAY)
        return rest < span * HOUR and day % 7 in days and day not in off

    return when


def bursts(when: When, on: int, of: int) -> When:
    """Return whether a minute is in the first `on` minutes of its period.

    A period has `of` minutes.
    """
    return lambda minute: minute % of < on and when(minute)


def days_apart(first: int, every: int, length: int) -> When:
    """Return whether a minute is in a period of `length` minutes.

    The first period starts at `first`, and the next ones start every `every` minutes.
    """
    return lambda minute: minute >= first and (minute - first) % every < length


def always(minute: int) -> bool:
    return True


def never(minute: int) -> bool:
    return False


def sessions(name: str, when: When, chance: float, longest: int) -> When:
    """Return whether a minute is in one of several random sessions.

    Sessions start only in minutes for which `when` is true, and last up to `longest` minutes.
    """
    drawn, until, on = random.Random(name), 0, set()
    for minute in range(MINUTES):
        if minute >= until and when(minute) and drawn.random() < chance:
            until = minute + drawn.randint(4, longest)
        if minute < until:
            on.add(minute)
    return on.__contains__


# --- activities -----------------------------------------------------------------------------------------------------


def work(when: When, use: Use = NOTEBOOK, rest: Use = REST) -> Schedule:
    """Return a schedule that works in the minutes for which `when` is true."""
    # Real minutes differ a little from each other, so use five slightly different activities.
    shades = [Use(*(value * (0.96 + 0.01 * shade) for value in use)) for shade in range(5)]
    return lambda minute: (shades[minute % 5], True) if when(minute) else (rest, False)


def requests(name: str, seconds: float, every: int, instant: bool, when: When = always) -> Schedule:
    """Return a schedule with one request every `every` minutes.

    A request takes `seconds`. If `instant` is false, the exporter averages over a minute. Otherwise the exporter sees a
    request only by chance.
    """
    share = seconds / 60
    average = blend(REQUEST, share)
    met, missed = REQUEST._replace(cpu=average.cpu), REST._replace(cpu=average.cpu)
    drawn = random.Random(name)
    hits = {minute for minute in range(MINUTES) if drawn.random() < share}

    def schedule(minute: int) -> tuple[Use, bool]:
        if minute % every or not when(minute):
            return REST, False
        return ((met if minute in hits else missed) if instant else average), True

    return schedule


def phases(*parts: tuple[int, Use]) -> Schedule:
    """Return a schedule that repeats several kinds of work: (minutes, activity)."""
    whole = [use for minutes, use in parts for _minute in range(minutes)]
    return lambda minute: (whole[minute % len(whole)], True)


# --- faults of samples ----------------------------------------------------------------------------------------------


def stuck(*names: str):
    """Return a function that sets these series to 0."""
    return lambda name, minute, value: 0.0 if name in names else value


def stuck_busy(*names: str):
    """Return a function that sets these utilization series to their highest value."""
    full = {"DCGM_FI_DEV_GPU_UTIL": 100.0}
    return lambda name, minute, value: full.get(name, 1.0) if name in names else value


def nan_by_day(name: str, minute: int, value: float) -> float:
    """Return NaN for ten hours of each day."""
    return math.nan if name in ACTIVITY and minute % DAY < 10 * HOUR else value


def gaps(when: When):
    """Return a function that removes all samples in minutes for which `when` is true."""
    return lambda name, minute, value: None if when(minute) else value


# --- patterns -------------------------------------------------------------------------------------------------------

UNIT: Callable[..., Holder] = partial(Holder, kind="process")
SERVER = Holder(listens=True, clients=0)
SMALL_SERVER = UNIT("predict.service", listens=True, clients=0)


def office(off: Sequence[int] = (), zone=BERLIN, days: Sequence[int] = WEEKDAYS) -> Schedule:
    return work(bursts(hours(9, 18, days, zone, off), 25, 60))


#: The delay of a pattern's second variant in minutes. It is three days plus a shift to another time of day and another
#: minute of the hour.
LATER = 3 * DAY + 5 * HOUR + 37


def later(one: Pattern, by: int) -> Pattern:
    """Return the pattern `by` minutes later.

    Its days off and its faulty samples are later too.
    """
    sampled = one.sampled and (lambda name, minute, value: one.sampled(name, minute - by, value))
    return replace(one, name=one.name + "-later", schedule=lambda minute: one.schedule(minute - by), sampled=sampled)


def named(came: int, weeks: int, by: int = 0) -> list[Pattern]:
    """Return the patterns that the project names.

    The holder came at the minute `came`, `weeks` before the end. The function delays the patterns by `by` minutes.
    """
    made = (
        Pattern("office-hours", office()),
        Pattern("office-holiday-monday", office((EASTER_MONDAY,))),
        Pattern("office-bridge", office((GOOD_FRIDAY - 1, GOOD_FRIDAY)), holder=UNIT("notebook.service")),
        Pattern("weekly-8h", work(hours(22, 6, (1,)), TRAIN)),
        Pattern("weekly-2h", work(hours(3, 5, (5,)), TRAIN), holder=UNIT("weekly.service")),
        # A small model. The clients keep no connection open between requests.
        Pattern("request-0.4s-minute", requests("a", 0.4, 1, False), holder=SMALL_SERVER, memory_gib=2),
        Pattern("request-0.4s-minute-instant", requests("b", 0.4, 1, True), holder=SMALL_SERVER, memory_gib=2),
        Pattern("request-5ms-second", requests("e", 0.3, 1, False), holder=SMALL_SERVER, memory_gib=2),
        # The server has no TCP socket that the host could find.
        Pattern("request-unix-socket", requests("f", 0.4, 1, False), memory_gib=60,
                holder=UNIT("gunicorn.service", listens=False, clients=0)),
        Pattern("request-2s-hour", requests("c", 2, 60, False), holder=UNIT("predict.service")),
        Pattern("request-2s-hour-instant", requests("d", 2, 60, True), holder=UNIT("predict.service")),
        Pattern("busy-nan-10h", work(always, TRAIN), sampled=nan_by_day),
        Pattern("activity-stuck", work(always, TRAIN._replace(sm=0.4, tensor=0.3)),
                sampled=stuck("gpu:busy_ratio", "gpu:memory_bandwidth_active_ratio")),
        Pattern("dcgm-gr-engine-stuck", work(hours(8, 20), TRAIN._replace(busy=0.99, power=650)), dcgm=True,
                sampled=stuck("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_DRAM_ACTIVE")),
        Pattern("mig-zero-at-350w", work(hours(7, 22), SERVE._replace(power=350), WARM_REST), instance="3g.40gb",
                sampled=stuck(*ACTIVITY)),
        # No kernel runs. The video engines decode frames, which stay on the GPU.
        Pattern("transcoder", work(bursts(hours(7, 23), 20, 60), TRANSCODE), holder=UNIT("transcode.service")),
        Pattern("transcoder-dcgm", work(bursts(hours(7, 23), 20, 60), TRANSCODE), dcgm=True, holder=UNIT("transcode.service")),
        # The utilization is stuck at 100 %. One GPU has profiling metrics and a holder who works. The other GPU, which
        # DCGM reports, never runs anything.
        Pattern("busy-stuck-office", office(), sampled=stuck_busy("gpu:busy_ratio"), contradicts=came),
        Pattern("busy-stuck-dcgm", work(never), dcgm=True, sampled=stuck_busy("DCGM_FI_DEV_GPU_UTIL"), contradicts=came,
                holder=UNIT("predict.service")),
    )  # fmt: skip
    made = tuple(later(one, by) for one in made) if by else made
    return [replace(one, name="%s-%dw" % (one.name, weeks), came=came) for one in made]


def in_turn(name: str, gpus: int, turn: int) -> list[Pattern]:
    """Return patterns of one process that takes turns on several GPUs.

    The process works all the time. It uses each GPU for `turn` minutes.
    """

    def schedule(number: int) -> Schedule:
        return lambda minute: (TRAIN if minute // turn % gpus == number else REST, True)

    return [
        Pattern("%s-%d" % (name, number), schedule(number), beside=name, index=number, holder=UNIT(name + ".service"))
        for number in range(gpus)
    ]


def pods(starts: When, length: int) -> tuple[tuple[int, int], ...]:
    """Return the spans of pods. A pod starts whenever `starts` becomes true."""
    return tuple(
        (minute, min(MINUTES, minute + length))
        for minute in range(1, MINUTES)
        if starts(minute) and not starts(minute - 1)
    )


#: On a Friday at 17:00.
HANDED_OVER = 18 * DAY + 17 * HOUR


def one_after_another(first: int, second: int) -> Schedule:
    """Return two holders' schedule.

    The first one trains until a minute. From a later minute on, the second one works during office hours.
    """
    offices = office()

    def schedule(minute: int) -> tuple[Use, bool]:
        if minute < first:
            return TRAIN, True
        return offices(minute) if minute >= second else (REST, False)

    return schedule


def standby() -> list[Pattern]:
    """Return model servers that wait for requests.

    The requests may never come.
    """
    probed = blend(REQUEST, 0.05 / 30)
    return [
        Pattern("standby", work(never), holder=SERVER, waits=True, memory_gib=60),
        Pattern("standby-unit", work(never, rest=WARM_REST), holder=UNIT("vllm.service", listens=True, clients=0),
                waits=True, memory_gib=70),
        Pattern("standby-weekly-request", requests("weekly", 3, WEEK, False), holder=SERVER, waits=True, memory_gib=60),
        # A server without requests. It uses one CPU core to poll for them.
        Pattern("polling-server", work(never, rest=REST._replace(cpu=1)), holder=SERVER, waits=True, memory_gib=60),
        Pattern("standby-health-checks", lambda minute: (probed, False), holder=SERVER, waits=True),
    ]  # fmt: skip


def others() -> list[Pattern]:
    """Return more patterns of holders who work."""
    night = hours(22, 5)
    hidden = COPIES._replace(cpu=0.002)
    pod = days_apart(90, 5 * HOUR, 2 * HOUR)
    reboots = tuple((first + (30 if first else 0), min(first + WEEK, MINUTES)) for first in range(0, MINUTES, WEEK))
    return [
        # --- Rhythms
        Pattern("batch-at-night", work(night, TRAIN), holder=UNIT("batch.service")),
        Pattern("batch-missing-hour", work(hours(2.5, 2.75), TRAIN)),
        Pattern("weekend-only", work(bursts(hours(10, 20, (5, 6)), 40, 60))),
        Pattern("two-evenings", work(bursts(hours(19, 22, (1, 3)), 30, 60))),
        Pattern("weekend-friday-saturday", office(zone=RIYADH, days=(6, 0, 1, 2, 3))),
        Pattern("office-clocks-back", office(zone=SYDNEY)),
        Pattern("office-easter", office((GOOD_FRIDAY, EASTER_MONDAY))),
        Pattern("office-easter-and-bridge", office((GOOD_FRIDAY - 1, GOOD_FRIDAY, EASTER_MONDAY))),
        Pattern("daily-but-easter", work(hours(10, 22, off=range(GOOD_FRIDAY, EASTER_MONDAY + 1)), NOTEBOOK)),
        # The holder works every day for weeks, and then takes a first weekend off.
        Pattern("first-free-weekend", work(bursts(hours(9, 22, off=(19, 20)), 25, 60)),
                holder=UNIT("notebook.service", listens=False, clients=0)),
        Pattern("serve-by-day", work(hours(6, 24), SERVE), holder=Holder(listens=True, clients=3)),
        Pattern("notebook", work(sessions("notebook", hours(9, 19, WEEKDAYS), 0.006, 40))),
        Pattern("ci-runner", work(sessions("ci", hours(8, 18, WEEKDAYS), 0.01, 5))),
        Pattern("fortnightly-8h", work(days_apart(8 * DAY, 14 * DAY, 8 * HOUR), TRAIN), rare=True),
        Pattern("monthly-8h", work(days_apart(3 * DAY, 28 * DAY, 8 * HOUR), TRAIN), rare=True),
        # --- Work that is no kernel
        Pattern("training-checkpoints", phases((20 * HOUR, TRAIN), (60 * HOUR, CPU_ONLY))),
        Pattern("cpu-preprocessing", lambda minute: (CPU_ONLY if minute < 9 * DAY else TRAIN, True)),
        Pattern("cpu-only-resets", work(always, CPU_ONLY), cpu_resets=lambda minute: minute % (6 * HOUR) == 0),
        Pattern("copies-only", work(bursts(always, 5, 60), COPIES)),
        Pattern("peer-copies-only", work(bursts(always, 10, 60), PEER_COPIES)),
        Pattern("video-decoding", work(hours(8, 22), VIDEO)),
        *standby(),
        # --- One process on several GPUs
        *in_turn("eight-in-turn-of-days", 8, 3 * DAY),
        *in_turn("two-in-turn-of-hours", 2, 5 * HOUR),
        # --- Trouble with samples
        Pattern("mig-zero-at-350w-power-only", work(always, SERVE._replace(power=350)), instance="3g.40gb",
                sampled=stuck(*ACTIVITY), without=TRAFFIC),
        # This instance only copies data. Its neighbour also causes power use and traffic on PCIe and NVLink, so the
        # GPU's totals show nothing about this instance.
        Pattern("mig-two-instances", lambda minute: (TRAIN if minute < 26 * DAY else hidden, True),
                instance="3g.40gb", neighbour=TRAIN),
        Pattern("exporter-restarts", office(), sampled=gaps(days_apart(17, 8 * HOUR, 10))),
        Pattern("host-restarts", work(night, TRAIN), holder=UNIT("batch.service"), spans=reboots,
                sampled=gaps(days_apart(0, WEEK, 30)), cpu_resets=lambda minute: minute % WEEK == 30),
        Pattern("changed-exporter", work(hours(19, 23, (5,)), TRAIN),
                exporters=(("gpu", 0, 22 * DAY + 60), ("dcgm", 22 * DAY, MINUTES))),
        Pattern("clock-ahead", work(hours(8, 20), TRAIN), holder=UNIT("train.service", ahead_seconds=10_800.0)),
        Pattern("clock-behind", work(hours(8, 20), TRAIN), holder=UNIT("train.service", ahead_seconds=-10_800.0)),
        Pattern("clock-days-ahead", work(hours(8, 20), TRAIN), holder=UNIT("train.service", ahead_seconds=3 * 86_400.0)),
        Pattern("gaps-while-working", work(night, TRAIN), sampled=gaps(hours(21.5, 5.5))),
        Pattern("gap-of-days", work(hours(20, 23), TRAIN), sampled=gaps(days_apart(23 * DAY, 90 * DAY, 5 * DAY))),
        Pattern("half-of-the-samples", requests("half", 20, 30, False, hours(8, 20)), every=2),
        Pattern("no-activity-series", work(hours(8, 20), NOTEBOOK), without=frozenset(ACTIVITY) | TRAFFIC),
        Pattern("utilisation-only", office(), without=PROFILING | TRAFFIC | {"gpu:compute_active_ratio"}),
        # --- Holders that come and go
        Pattern("pods", lambda minute: (TRAIN, True), spans=pods(pod, 2 * HOUR),
                holder=Holder("containerd container pods", kind="kubelet", job="pods")),
        Pattern("new-holder", work(lambda minute: minute < 10 * DAY, TRAIN), same_user=False,
                spans=((0, 10 * DAY), (27 * DAY, MINUTES))),
        # The second holder takes the GPU without a pause. Only the host knows that the second holder's process is new.
        Pattern("back-to-back", one_after_another(HANDED_OVER, HANDED_OVER), same_user=False,
                spans=((0, HANDED_OVER), (HANDED_OVER, MINUTES)), holder=UNIT("notebook.service")),
        Pattern("dcgm-only-new-holder", one_after_another(9 * DAY, 20 * DAY), same_user=False,
                spans=((0, 9 * DAY), (20 * DAY, MINUTES)), without=HOST_SERIES, holder=UNIT("notebook.service")),
        # The label changed right after a run, so the history has the old label.
        Pattern("changed-host-label", work(days_apart(4 * DAY, 9 * DAY, 8 * HOUR), TRAIN), renamed=22 * DAY + 12 * HOUR),
        Pattern("new-gpu", work(hours(15, 18, (1,)), TRAIN), came=26 * DAY),
        Pattern("slurm-by-day", work(bursts(hours(10, 17, WEEKDAYS), 40, 60), TRAIN),
                holder=Holder("slurmstepd.scope", kind="slurm", job="77")),
    ]  # fmt: skip
