# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Export the leases of a host as metrics. Pure functions."""

from __future__ import annotations

from collections import Counter
from typing import Iterable, Mapping

from ..leases.model import Booking
from ..model import Gpu
from ..plan.leased import Leased
from ..plan.metric_family import GAUGE, Family, Sample, labels_of
from ..sizes import BYTES_PER_UNIT


def families(bookings: Iterable[Booking], leased: Iterable[Leased], gpus: Mapping[str, Gpu]) -> tuple[Family, ...]:
    """Return the metrics of leases, waiting requests and idle instances.

    `gpus` maps UUIDs to GPUs. Families without samples are empty.
    """
    running: Counter[str] = Counter()
    waiting: Counter[str] = Counter()
    memory: Counter[str] = Counter()
    for booking in bookings:
        account = booking.request.account
        if not booking.started:
            waiting[account] += 1
            continue
        running[account] += 1
        memory[account] += sum(_memory_bytes(booking, gpus.get(place.gpu_uuid)) for place in booking.places)
    accounts = sorted({*running, *waiting})
    idle = Counter((each.gpu_uuid, each.profile) for each in leased if each.lease is None)
    return (
        Family(
            "openfleet_lease_running",
            GAUGE,
            "Number of current leases of the account.",
            tuple(Sample(running[name], {"account": name}) for name in accounts),
        ),
        Family(
            "openfleet_lease_waiting",
            GAUGE,
            "Number of waiting requests of the account.",
            tuple(Sample(waiting[name], {"account": name}) for name in accounts),
        ),
        Family(
            "openfleet_lease_memory_bytes",
            GAUGE,
            "GPU memory of the current leases of the account.",
            tuple(Sample(memory[name], {"account": name}) for name in accounts),
        ),
        Family(
            "openfleet_lease_idle_instances",
            GAUGE,
            "Number of instances that an ended lease left and no lease uses.",
            tuple(
                Sample(count, dict(labels_of(uuid, gpus), mig_profile=profile))
                for (uuid, profile), count in sorted(idle.items())
            ),
        ),
    )


def _memory_bytes(booking: Booking, gpu: Gpu | None) -> int:
    """Return the memory of the booking on a GPU.

    Returns 0 for an instance on a GPU that does not answer.
    """
    shape = booking.request.shape
    if shape.profile is None:
        return shape.memory_bytes
    profiles = () if gpu is None else gpu.mig.profiles
    return next((each.memory_mib for each in profiles if each.name == shape.profile), 0) * BYTES_PER_UNIT["MiB"]
