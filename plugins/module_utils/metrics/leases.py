# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Export a host's leases as metrics, with pure functions."""

from __future__ import annotations

from collections import Counter, defaultdict
from types import MappingProxyType
from typing import Iterable, Mapping, Tuple

from ..leases.model import Booking, Request
from ..leases.names import tenant_name
from ..model import Gpu
from ..plan.leased import Leased
from ..plan.metric_family import GAUGE, Family, Sample, labels_of
from ..sizes import BYTES_PER_UNIT

#: Metrics with each tenant's quota, fixed or leased.
_QUOTAS, _SM_QUOTAS = "openfleet_tenant_memory_limit_bytes", "openfleet_tenant_sm_limit_ratio"
#: An account, and the entry of its leases.
_Owner = Tuple[str, str]


def families(
    bookings: Iterable[Booking],
    leased: Iterable[Leased],
    gpus: Mapping[str, Gpu],
    pool: Mapping[str, str] = MappingProxyType({}),
    others: Iterable[Family] = (),
) -> tuple[Family, ...]:
    """Return the metrics of leases and of the pool for leases.

    `gpus` maps UUIDs to GPUs. `pool` maps the UUID of each GPU with leases to its entry. `others` has the metrics of
    tenants. Families without samples are empty.
    """
    bookings, leased = tuple(bookings), tuple(leased)
    need: dict[bool, defaultdict[_Owner, float]] = {True: defaultdict(float), False: defaultdict(float)}
    running: Counter[str] = Counter()
    waiting: Counter[str] = Counter()
    memory: Counter[str] = Counter()
    ends = []
    for booking in bookings:
        request = booking.request
        need[booking.started][request.account, booking.where] += sum(
            _share(request, gpus.get(place.gpu_uuid)) for place in booking.places
        )
        if not booking.started:
            waiting[request.account] += 1
            continue
        running[request.account] += 1
        memory[request.account] += sum(_memory_bytes(request, gpus.get(place.gpu_uuid)) for place in booking.places)
        own = {"account": request.account, "lease": str(request.number), "size": str(request.shape)}
        ends += [
            Sample(booking.ends, {**labels_of(place.gpu_uuid, gpus), **own, "entry": booking.where})
            for place in booking.places
            # A pod's lease has no end.
            if request.claim is None
        ]
    accounts = sorted({*running, *waiting})
    idle = Counter((each.gpu_uuid, each.profile) for each in leased if each.lease is None)
    fixed, fixed_share = _fixed(bookings, leased, gpus, others)
    totals = {uuid: gpus[uuid].memory_total_bytes for uuid in pool if uuid in gpus}
    rooms = [
        Sample(max(0, total - fixed[uuid]), labels_of(uuid, gpus))
        for uuid, total in totals.items()
        if total is not None
    ]
    shares = [
        Sample(max(0.0, 1 - fixed_share[uuid]), {**labels_of(uuid, gpus), "entry": pool[uuid]}) for uuid in totals
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
            "GPU memory for leases, without that of fixed instances and tenants.",
            tuple(rooms),
        ),
        *(
            Family(
                name,
                GAUGE,
                text,
                tuple(
                    Sample(value, {"account": account, "entry": entry})
                    for (account, entry), value in sorted(need[started].items())
                ),
            )
            for name, text, started in (
                ("openfleet_lease_gpus", "Current leases of the account, in GPUs.", True),
                ("openfleet_lease_waiting_gpus", "Waiting requests of the account, in GPUs.", False),
            )
        ),
        Family(
            "openfleet_lease_pool_gpus",
            GAUGE,
            "Share of the GPU for leases, 0 to 1, without that of fixed instances and tenants.",
            tuple(shares),
        ),
        Family(
            "openfleet_lease_idle_instances",
            GAUGE,
            "Number of instances of ended leases that no lease uses.",
            tuple(
                Sample(count, dict(labels_of(uuid, gpus), mig_profile=profile))
                for (uuid, profile), count in sorted(idle.items())
            ),
        ),
    )


def _fixed(
    bookings: Iterable[Booking], leased: Iterable[Leased], gpus: Mapping[str, Gpu], others: Iterable[Family]
) -> tuple[Counter[str], dict[str, float]]:
    """Return each GPU's memory and share that leases cannot use.

    The layout's instances and tenants have them.
    """
    records, names = tuple(leased), {tenant_name(booking.request.number) for booking in bookings}
    memory: Counter[str] = Counter()
    shares = dict.fromkeys(gpus, 0.0)
    for uuid, gpu in gpus.items():
        for instance in gpu.mig.instances:
            if not any(record.matches(gpu, instance) for record in records):
                memory[uuid] += _profile_bytes(instance.profile, gpu)
                shares[uuid] += _profile_share(instance.profile, gpu)
    quotas: dict[tuple[str, str], dict[str, float]] = {}
    for family in others:
        for sample in family.samples if family.name in (_QUOTAS, _SM_QUOTAS) else ():
            if sample.labels["tenant"] not in names:
                place = sample.labels["gpu_uuid"], sample.labels["tenant"]
                quotas.setdefault(place, {})[family.name] = sample.value
    for (uuid, _tenant), quota in quotas.items():
        memory[uuid] += int(quota.get(_QUOTAS, 0))
        if uuid in shares:
            shares[uuid] += max(_memory_share(int(quota.get(_QUOTAS, 0)), gpus[uuid]), quota.get(_SM_QUOTAS, 0.0))
    return memory, shares


def _memory_bytes(request: Request, gpu: Gpu | None) -> int:
    """Return the memory of a lease on a GPU.

    Returns 0 for an instance on a GPU that does not answer.
    """
    shape = request.shape
    return shape.memory_bytes if shape.profile is None else _profile_bytes(shape.profile, gpu)


def _share(request: Request, gpu: Gpu | None) -> float:
    """Return the share of a GPU that a lease occupies.

    This is the larger of its shares of memory and compute. Returns 0 for a GPU that does not answer.
    """
    shape = request.shape
    if gpu is None:
        return 0.0
    if shape.profile is not None:
        return _profile_share(shape.profile, gpu)
    return max(_memory_share(shape.memory_bytes, gpu), shape.sm_percent / 100)


def _profile_bytes(name: str, gpu: Gpu | None) -> int:
    profiles = () if gpu is None else gpu.mig.profiles
    return next((each.memory_mib for each in profiles if each.name == name), 0) * BYTES_PER_UNIT["MiB"]


def _profile_share(name: str, gpu: Gpu) -> float:
    slices = next((each.compute_slices for each in gpu.mig.profiles if each.name == name), 0)
    most = max((each.compute_slices for each in gpu.mig.profiles), default=1)
    return max(_memory_share(_profile_bytes(name, gpu), gpu), slices / most)


def _memory_share(memory_bytes: int, gpu: Gpu) -> float:
    return min(1.0, memory_bytes / gpu.memory_total_bytes) if gpu.memory_total_bytes else 0.0
