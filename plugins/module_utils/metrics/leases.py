# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Export the leases of a host as metrics. Pure functions."""

from __future__ import annotations

from collections import Counter
from typing import Iterable, Mapping

from ..leases.model import Booking, Request
from ..leases.names import tenant_name
from ..model import Gpu
from ..plan.leased import Leased
from ..plan.metric_family import GAUGE, Family, Sample, labels_of
from ..sizes import BYTES_PER_UNIT

#: Metric with the quota of each tenant, fixed or leased.
_QUOTAS = "openfleet_tenant_memory_limit_bytes"


def families(
    bookings: Iterable[Booking],
    leased: Iterable[Leased],
    gpus: Mapping[str, Gpu],
    pool: Iterable[str] = (),
    others: Iterable[Family] = (),
) -> tuple[Family, ...]:
    """Return the metrics of leases and of the pool for leases.

    `gpus` maps UUIDs to GPUs. `pool` are the UUIDs of the GPUs whose entry offers leases, and `others` the metrics of
    tenants. Families without samples are empty.
    """
    bookings, leased = tuple(bookings), tuple(leased)
    running: Counter[str] = Counter()
    waiting: Counter[str] = Counter()
    memory: Counter[str] = Counter()
    ends = []
    for booking in bookings:
        request = booking.request
        if not booking.started:
            waiting[request.account] += 1
            continue
        running[request.account] += 1
        memory[request.account] += sum(_memory_bytes(request, gpus.get(place.gpu_uuid)) for place in booking.places)
        own = {"account": request.account, "lease": str(request.number), "size": str(request.shape)}
        ends += [
            Sample(booking.ends, {**labels_of(place.gpu_uuid, gpus), **own, "entry": booking.where})
            for place in booking.places
        ]
    accounts = sorted({*running, *waiting})
    idle = Counter((each.gpu_uuid, each.profile) for each in leased if each.lease is None)
    fixed = _fixed_bytes(bookings, leased, gpus, others)
    totals = {uuid: gpus[uuid].memory_total_bytes for uuid in pool if uuid in gpus}
    rooms = [
        Sample(max(0, total - fixed[uuid]), labels_of(uuid, gpus))
        for uuid, total in totals.items()
        if total is not None
    ]
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
            "openfleet_lease_end_timestamp_seconds",
            GAUGE,
            "End of each current lease, on each of its GPUs.",
            tuple(ends),
        ),
        Family(
            "openfleet_lease_pool_memory_bytes",
            GAUGE,
            "GPU memory for leases: what fixed instances and tenants leave.",
            tuple(rooms),
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


def _fixed_bytes(
    bookings: Iterable[Booking], leased: Iterable[Leased], gpus: Mapping[str, Gpu], others: Iterable[Family]
) -> Counter[str]:
    """Return the memory of instances and tenants that belong to no lease, by GPU."""
    records, names = tuple(leased), {tenant_name(booking.request.number) for booking in bookings}
    fixed: Counter[str] = Counter()
    for uuid, gpu in gpus.items():
        for instance in gpu.mig.instances:
            if not any(record.matches(gpu, instance) for record in records):
                fixed[uuid] += _profile_bytes(instance.profile, gpu)
    for family in others:
        for sample in family.samples if family.name == _QUOTAS else ():
            if sample.labels["tenant"] not in names:
                fixed[sample.labels["gpu_uuid"]] += int(sample.value)
    return fixed


def _memory_bytes(request: Request, gpu: Gpu | None) -> int:
    """Return the memory of a lease on a GPU.

    Returns 0 for an instance on a GPU that does not answer.
    """
    shape = request.shape
    return shape.memory_bytes if shape.profile is None else _profile_bytes(shape.profile, gpu)


def _profile_bytes(name: str, gpu: Gpu | None) -> int:
    profiles = () if gpu is None else gpu.mig.profiles
    return next((each.memory_mib for each in profiles if each.name == name), 0) * BYTES_PER_UNIT["MiB"]
