# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define patterns of GPUs whose holders will never use them again.

The audit must report each of these GPUs as idle by its deadline.
"""

from __future__ import annotations

from dataclasses import replace

from tests.audit.idle_model import (
    DAY,
    HOUR,
    MINUTES,
    REST,
    SERVE,
    TRAIN,
    WARM_REST,
    Holder,
    Pattern,
    Schedule,
    Use,
    blend,
)
from tests.audit.idle_working import (
    PROFILING,
    SERVER,
    TRAFFIC,
    UNIT,
    When,
    always,
    days_apart,
    gaps,
    hours,
    later,
    never,
    work,
)

BARE = Holder(process=False)


def until(end: int, when: When = always) -> When:
    return lambda minute: minute < end and when(minute)


def trained(end: int, rest: Use = REST) -> Schedule:
    """Return a schedule that trains around the clock until `end`."""
    return work(until(end), TRAIN, rest)


def came_later(one: Pattern, by: int) -> Pattern:
    """Return the pattern with a holder who came and left `by` minutes later."""
    return replace(later(one, by), name=one.name, came=one.came + by, abandoned=one.abandoned + by)


def patterns() -> list[Pattern]:
    office_hours = hours(9, 18, (0, 1, 2, 3, 4))
    noise = blend(TRAIN, 0.001)._replace(pcie=2e5, nvlink=0, cpu=0.01)
    left = 7 * DAY
    return [
        Pattern("forgotten-notebook", work(until(9 * DAY + 17 * HOUR, office_hours)), abandoned=9 * DAY + 17 * HOUR),
        Pattern("abandoned-on-friday", work(until(11 * DAY + 17 * HOUR, office_hours)), abandoned=11 * DAY + 17 * HOUR),
        Pattern("hanging-training", trained(left), holder=UNIT("train.service"), abandoned=left),
        Pattern("hanging-training-warm", trained(left, WARM_REST), holder=UNIT("train.service"), abandoned=left),
        Pattern("container-without-process", trained(left), process_ends=left, abandoned=left),
        Pattern("never-used-container", work(never), holder=BARE, abandoned=0),
        Pattern("never-used-kernel", work(never), abandoned=0, memory_gib=0.6),
        Pattern("slurm-without-process", work(never), abandoned=0,
                holder=Holder("slurmstepd.scope", kind="slurm", process=False, job="78")),
        Pattern("pod-without-process", work(never), abandoned=0,
                holder=Holder("containerd container left", kind="kubelet", process=False, job="left")),
        Pattern("open-handle", work(never), holder=Holder("left.service", kind="device_handle", process=False), abandoned=0),
        Pattern("server-without-clients", work(until(left, hours(6, 24)), SERVE), holder=SERVER, abandoned=left, memory_gib=60),
        # The CPU time of this holder is constant, so it is no sign of work. Without this sign, the grace period is
        # longer.
        Pattern("polling-server-left", work(until(left, hours(6, 24)), SERVE, REST._replace(cpu=1)), holder=SERVER,
                abandoned=left, memory_gib=60, lengthened=12 * HOUR),
        Pattern("server-not-listening", work(until(left, hours(6, 24)), SERVE), abandoned=left, memory_gib=60,
                holder=Holder(listens=False, clients=0)),
        Pattern("mig-forgotten", work(until(left, office_hours)), instance="3g.40gb", abandoned=left,
                lengthened=12 * HOUR),
        Pattern("weekly-job-ended", work(until(9 * DAY + 3 * HOUR, hours(20, 4, (1,))), TRAIN), abandoned=9 * DAY + 3 * HOUR),
        Pattern("left-and-half-sampled", trained(left), every=2, abandoned=left),
        Pattern("left-with-restarts", trained(left), sampled=gaps(days_apart(17, 8 * HOUR, 10)), abandoned=left),
        Pattern("left-with-gaps", trained(left), sampled=gaps(hours(1, 3)), abandoned=left, lengthened=2 * DAY),
        Pattern("left-with-new-exporter", trained(left), abandoned=left,
                exporters=(("gpu", 0, 22 * DAY + 60), ("dcgm", 22 * DAY, MINUTES))),
        Pattern("left-with-noise", trained(left, noise), abandoned=left),
        Pattern("left-without-profiling", trained(left), without=PROFILING | TRAFFIC, abandoned=left, lengthened=2 * DAY),
        Pattern("left-with-counter-resets", trained(left), cpu_resets=lambda minute: minute % (6 * HOUR) == 0,
                abandoned=left),
        *(Pattern("left-with-two-gpus-%d" % number, trained(left), beside="left-with-two-gpus", index=number, abandoned=left)
          for number in range(2)),
        Pattern("dcgm-left", trained(left), dcgm=True, abandoned=left),
    ]  # fmt: skip
