# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan the change from the current to the desired tenants, with pure functions.

The GPUs have a separate plan. Existing tenants keep their GPUs and seats if possible. Running programs follow new
quotas.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Callable, Iterable, Mapping, Sequence

from ...errors import PlanError
from ...frozen import frozen
from ...layout.matching import matches
from ...layout.types import Entry, Layout
from ...model import Gpu, Holder, Host, short_label
from ...plan.disturbance import Disturbance
from ...plan.gpu_plan import Plan
from ...plan.leased import LEASE
from . import names as vgpu_names
from .files import name_problem
from .fit import Bin, Demand, TooHardError, first_misfit, largest, pack
from .model import (
    AUTO,
    DMEM,
    MOST_GPUS,
    MPS,
    PRELOAD,
    SEATS,
    VgpuName,
    VgpuSeat,
    VgpuSeen,
    VgpuTenant,
    priority_of,
)
from .names import Names
from .part import Tenant, Vgpu, vgpu_of
from .steps import AddTenant, ChangeTenant, RemoveTenant, VgpuPlan, size

# Tolerance for ratios, because floating point is inexact: 1.15 * 100 is slightly below 115.
_ROUNDING = 1e-6

#: The room for leases in a layout without leases.
NO_LEASES: Mapping[str, Bin] = MappingProxyType({})

#: A function that returns a tenant's processes on a GPU, given the tenant's name and the GPU's UUID.
Processes = Callable[[str, str], Sequence[Holder]]


@frozen
class WantedTenant:
    """A desired tenant and its position in the layout.

    `why` is the reason for the provider that `auto` selected. `kept_names` has names that the layout does not contain.
    The tenant keeps them until the processes with these names have ended.
    """

    tenant: VgpuTenant
    where: str
    why: str = ""
    kept_names: tuple[VgpuName, ...] = ()


def wanted(
    layout: Layout, plan: Plan, seen: Sequence[VgpuSeen] = (), dmem: frozenset[str] = frozenset()
) -> tuple[WantedTenant, ...]:
    """Return the layout's tenants with their GPUs and seats, sorted by name.

    `dmem` has the UUIDs of the GPUs whose memory the kernel can limit. Raises PlanError if a tenant does not fit, or if
    its pin, name or provider is impossible.
    """
    fixed = [one for one in seen if one.tenant.lease is None]
    names = vgpu_names.match(layout, fixed, {gpu.gpu.uuid: gpu.gpu.label for gpu in plan.gpus})
    tenants: list[WantedTenant] = []
    for entry in layout.entries:
        vgpu = vgpu_of(entry)
        if vgpu is not None:
            gpus = [gpu.gpu for gpu in plan.gpus if gpu.target.where == entry.where]
            tenants += _of_entry(entry, vgpu, gpus, names, [one.tenant for one in seen], dmem)
    return tuple(sorted(tenants, key=lambda each: each.tenant.name))


def plan(
    tenants: Sequence[WantedTenant],
    seen: Sequence[VgpuSeen],
    gpus: Plan,
    host: Host,
    processes: Processes,
    rooms: Mapping[str, Bin] | None = NO_LEASES,
) -> VgpuPlan:
    """Return the steps from the `seen` tenants to the desired `tenants`.

    A tenant that is not in the layout is removed if the layout names one of its GPUs. A lease's tenant stays if there
    is room in `rooms`, from `rooms_of_leases`. If `rooms` is None, all other tenants are removed.

    Processes that would escape their quota block the change: processes of a removed tenant, and processes on a GPU that
    their tenant leaves.
    """
    by_key = {each.tenant.key: each for each in tenants}
    kept_names = tuple((each.tenant.name, name) for each in tenants for name in each.kept_names)
    named = {each.gpu.uuid for each in gpus.gpus}
    removes, changes, kept, disturbs = [], [], [], []
    indices = tuple((gpu.uuid, gpu.index) for gpu in host.gpus)
    left = () if rooms is None else _leases_that_stay(tenants, seen, gpus, rooms)
    for one in sorted(seen, key=lambda each: each.tenant.name):
        want = by_key.pop(one.tenant.key, None)
        if one in left:
            continue
        if want is None:
            if rooms is None or named.intersection(one.tenant.gpus):
                removes.append(RemoveTenant(one))
                disturbs += unheld(removes[-1], processes, indices)
                disturbs += _ended_lease(one.tenant, indices)
        elif one.tenant == want.tenant and not one.outdated:
            kept.append(one)
        else:
            change = ChangeTenant(one, want.tenant)
            changes.append(change)
            disturbs += unheld(change, processes, indices)
    # Shrink first, because other tenants may grow into the freed capacity.
    changes.sort(
        key=lambda c: (bool(set(c.tenant.gpus) - set(c.seen.tenant.gpus)), c.grows_bytes, _grows_percent(c), c.name)
    )
    adds = [AddTenant(each.tenant, each.where, each.why) for each in by_key.values()]
    return VgpuPlan(
        tuple(removes), tuple(changes), tuple(adds), tuple(kept), left, tuple(disturbs), indices, kept_names
    )


def rooms_of_leases(layout: Layout, plan: Plan) -> dict[str, Bin]:
    """Return the capacity of each GPU whose entry has leases, by GPU UUID."""
    entries = {entry.where: entry.part for entry in layout.entries if entry.leases is not None and vgpu_of(entry)}
    gpus = [(each.gpu, entries.get(each.target.where)) for each in plan.gpus]
    return {gpu.uuid: capacity(gpu, vgpu) for gpu, vgpu in gpus if vgpu is not None}


def capacity(gpu: Gpu, vgpu: Vgpu) -> Bin:
    """Return the capacity for the entry's tenants on one of its GPUs."""
    memory_bytes = int((gpu.memory_total_bytes or 0) * vgpu.oversubscribe_memory_ratio + _ROUNDING)
    return Bin(gpu.uuid, memory_bytes, 100 * vgpu.oversubscribe_sm_ratio + _ROUNDING, SEATS)


def remaining(whole: Bin, tenants: Iterable[VgpuTenant]) -> Bin:
    """Return the part of a GPU that these tenants leave free.

    Values are negative if the tenants exceed the capacity.
    """
    on_gpu = [tenant for tenant in tenants if whole.uuid in tenant.gpus]
    return Bin(
        whole.uuid,
        whole.memory_bytes - sum(tenant.memory_bytes for tenant in on_gpu),
        whole.sm_percent - sum(tenant.sm_percent for tenant in on_gpu),
        whole.seats - len(on_gpu),
    )


def _leases_that_stay(
    tenants: Sequence[WantedTenant], seen: Sequence[VgpuSeen], gpus: Plan, rooms: Mapping[str, Bin]
) -> tuple[VgpuSeen, ...]:
    """Return the leases' tenants for which the layout's tenants leave room.

    If there is not enough room for all, smaller leases stay first. GPUs without an entry do not change.
    """
    named = {each.gpu.uuid for each in gpus.gpus}
    free = {uuid: remaining(room, [want.tenant for want in tenants]) for uuid, room in rooms.items()}
    stay: list[VgpuSeen] = []
    leases = [one for one in seen if one.tenant.lease is not None]
    for one in sorted(leases, key=lambda each: (each.tenant.memory_bytes, each.tenant.sm_percent, each.tenant.name)):
        left = {uuid: remaining(free[uuid], [one.tenant]) for uuid in one.tenant.gpus if uuid in free}
        leased = all(uuid in free or uuid not in named for uuid in one.tenant.gpus)
        if leased and all(min(each.memory_bytes, each.sm_percent, each.seats) >= 0 for each in left.values()):
            free.update(left)
            stay.append(one)
    return tuple(stay)


def _ended_lease(tenant: VgpuTenant, indices: Sequence[tuple[str, int]]) -> list[Disturbance]:
    """Return the lease whose tenant is removed, as a disturbance.

    A lease holds its quota even if no process uses a GPU.
    """
    if tenant.lease is None:
        return []
    uuid = tenant.gpus[0]
    what = "vgpu %s (%s)" % (tenant.name, _short_label(dict(indices), uuid))
    return [Disturbance(what, (Holder(uuid, None, LEASE, tenant.lease),))]


def unheld(
    step: RemoveTenant | ChangeTenant, processes: Processes, indices: Sequence[tuple[str, int]]
) -> list[Disturbance]:
    """Return the processes that would escape their quota in a step.

    The step removes their tenant, removes it from a GPU, or changes its provider.
    """
    index, tenant = dict(indices), step.seen.tenant
    disturbances = []
    for uuid in step.unheld:
        # `processes` returns a process of unknown tenant for each name. List it only once.
        holders = list(dict.fromkeys(holder for name in tenant.names for holder in processes(name, uuid)))
        if holders:
            what = "vgpu %s (%s %s)" % (tenant.name, step.reason(uuid), _short_label(index, uuid))
            disturbances.append(Disturbance(what, tuple(holders)))
    return disturbances


def _short_label(index: Mapping[str, int], uuid: str) -> str:
    # A GPU that the host does not have only has a UUID.
    return short_label(index[uuid], uuid) if uuid in index else "gpu %s" % uuid


def _grows_percent(change: ChangeTenant) -> int:
    return change.tenant.sm_percent - change.seen.tenant.sm_percent


def _of_entry(
    entry: Entry,
    vgpu: Vgpu,
    gpus: Sequence[Gpu],
    names: Mapping[str, Names],
    current: Sequence[VgpuTenant],
    dmem: frozenset[str],
) -> list[WantedTenant]:
    where = {tenant.name: "%s.vgpu.tenants[%d]" % (entry.where, n) for n, tenant in enumerate(vgpu.tenants)}
    if vgpu.provider == MPS and vgpu.policy != "fixed":
        raise PlanError(
            "%s.vgpu.policy" % entry.where,
            "MPS always enforces the share, which is `policy: fixed`",
            "Remove policy, or use another provider.",
        )
    demands = [_demand(tenant, vgpu, gpus, where[tenant.name], names[tenant.name].now) for tenant in vgpu.tenants]
    leases = [tenant for tenant in current if tenant.lease is not None] if entry.leases is not None else []
    packed = _packed(entry, vgpu, gpus, demands, where, leases)
    desired = []
    kept = {names[demand.name].key: set(packed[demand.name]) for demand in demands}
    taken = taken_seats(gpus, current, {**kept, **{tenant.key: set(tenant.gpus) for tenant in leases}})
    for tenant in vgpu.tenants:
        own = names[tenant.name]
        seats = free_seats(packed[tenant.name], taken, own.now)
        provider, why = provider_of(vgpu.provider, packed[tenant.name], dmem, "%s.vgpu.provider" % entry.where)
        made = VgpuTenant(
            tenant.name,
            tenant.memory_bytes,
            tenant.sm_percent,
            seats,
            vgpu.policy,
            priority_of(tenant.priority, tenant.latency),
            provider,
            tenant.group,
            tenant.oversubscribe_managed,
            None if own.key == tenant.name else own.key,
            own.aliases,
            waterline_percent=vgpu.waterline_percent,
        )
        desired.append(WantedTenant(made, where[tenant.name], why, own.kept))
    return desired


def _demand(tenant: Tenant, vgpu: Vgpu, gpus: Sequence[Gpu], where: str, now: VgpuTenant | None) -> Demand:
    for key, name in (("name", tenant.name), ("was", tenant.was)):
        problem = None if name is None else name_problem(name)
        if problem is not None:
            raise PlanError("%s.%s: %s" % (where, key, problem.where), problem.problem, problem.cure)
    if vgpu.provider == MPS and tenant.gpus > 1:
        # A process has one pipe directory, and can therefore only use one daemon.
        problem_text = "a process uses only one MPS daemon, but each GPU of the entry has a separate daemon"
        raise PlanError("%s.gpus" % where, problem_text, "Lower gpus, or use another provider.")
    if tenant.gpus > MOST_GPUS:
        problem_text = "the tenant spans %d GPUs, but the limit is %d" % (tenant.gpus, MOST_GPUS)
        raise PlanError("%s.gpus" % where, problem_text, "Lower gpus.")
    pin = None
    if tenant.gpu is not None:
        pinned = [gpu.uuid for gpu in gpus if matches(tenant.gpu, gpu)]
        if not pinned:
            raise PlanError(
                "%s.gpu" % where,
                "the tenant is pinned to %s, which is not in its entry" % tenant.gpu,
                "Pin it to one of the entry's GPUs: %s." % ", ".join(gpu.label for gpu in gpus),
            )
        pin = pinned[0]
    current = frozenset(now.gpus) if now is not None else frozenset()
    return Demand(tenant.name, tenant.memory_bytes, tenant.sm_percent, tenant.gpus, pin, current)


def _packed(
    entry: Entry,
    vgpu: Vgpu,
    gpus: Sequence[Gpu],
    demands: Sequence[Demand],
    where: dict[str, str],
    leases: Sequence[VgpuTenant],
) -> dict[str, tuple[str, ...]]:
    for gpu in gpus:
        if gpu.memory_total_bytes is None:
            raise PlanError(
                "%s.vgpu on %s" % (entry.where, gpu.label),
                "the driver reports no memory size for this GPU, but quotas of tenants need it",
                "Choose another sharing for this GPU (exclusive, shared, time_slicing or mps).",
            )
    bins = [capacity(gpu, vgpu) for gpu in gpus]
    try:
        # If the tenants do not fit next to the leases, the plan ends leases.
        packed = pack([remaining(each, leases) for each in bins], demands) if leases else None
        packed = packed or pack(bins, demands)
        if packed is not None:
            return packed
        misfit, free = first_misfit(bins, demands)
        alone = pack(bins, [misfit]) is not None
    except TooHardError:
        raise PlanError(
            "%s.vgpu" % entry.where,
            "the search for a packing of %d tenants on %d GPUs took too long" % (len(demands), len(gpus)),
            "Set the key gpu of each tenant, or split the GPUs over several entries.",
        ) from None
    index = {gpu.uuid: gpu.index for gpu in gpus}
    takes = "%s and %d %%" % (size(misfit.memory_bytes), misfit.sm_percent)
    if misfit.count > 1:
        takes += " on each of %d GPUs" % misfit.count
    elif misfit.pin is not None:
        takes += " on gpu %d" % index[misfit.pin]
    tenant = "the tenant %s (%s)" % (misfit.name, takes)
    if not alone:
        raise PlanError(where[misfit.name], *_too_large(tenant, misfit, bins, gpus, vgpu.oversubscribe_memory_ratio))
    raise PlanError(
        where[misfit.name],
        "%s does not fit beside the tenants before it. Free: %s"
        % (tenant, ", ".join("%s on gpu %d" % (_room(each), index[each.uuid]) for each in free)),
        "Lower memory or sm_percent, move tenants, or raise oversubscribe.",
    )


def _too_large(
    tenant: str, misfit: Demand, bins: Sequence[Bin], gpus: Sequence[Gpu], memory_ratio: float
) -> tuple[str, str]:
    """Return (problem, fix) for a tenant that does not even fit on empty GPUs."""
    if misfit.count > len(bins):
        has = "1 GPU" if len(bins) == 1 else "%d GPUs" % len(bins)
        return "%s spans more GPUs than its entry, which has %s" % (
            tenant,
            has,
        ), "Lower gpus, or add GPUs to the entry."
    sizes = ", ".join(
        "%s on gpu %d" % (size(gpu.memory_total_bytes or 0), gpu.index)
        for gpu in gpus
        if misfit.pin in (None, gpu.uuid)
    )
    times = "" if memory_ratio == 1 else ", times %g by oversubscribe.memory" % memory_ratio
    return (
        "%s needs more memory than its GPUs have, which is %s%s" % (tenant, sizes, times),
        "The largest memory that fits is %s." % size(largest(bins, misfit)),
    )


def _room(free: Bin) -> str:
    if not free.seats:
        return "no seat (a GPU has %d)" % SEATS
    return "%s and %d %%" % (size(free.memory_bytes), free.sm_percent)


def taken_seats(
    gpus: Sequence[Gpu], current: Sequence[VgpuTenant], packed: dict[str, set[str]]
) -> dict[str, dict[int, bool]]:
    """Return the occupied seats of each GPU, and whether their tenants keep them.

    The result is {seat: whether its tenant keeps it} by GPU UUID. `packed` has the planned GPUs by tenant key.
    """
    return {
        gpu.uuid: {
            seat.seat: gpu.uuid in packed.get(tenant.key, ())
            for tenant in current
            for seat in tenant.seats
            if seat.gpu_uuid == gpu.uuid
        }
        for gpu in gpus
    }


def free_seats(uuids: Sequence[str], taken: dict[str, dict[int, bool]], now: VgpuTenant | None) -> tuple[VgpuSeat, ...]:
    """Return the tenant's seats.

    A new seat is a free one if possible. The seat of a removed tenant is used only if none is free, because that
    tenant's processes may still use it.
    """
    has = {seat.gpu_uuid: seat.seat for seat in now.seats} if now is not None else {}
    if now is not None and set(uuids) == set(now.gpus):
        # Keep the GPUs in the order in which the tenant's running processes see them.
        return now.seats
    seats_of_tenant = []
    for uuid in uuids:
        if uuid not in has:
            seats = taken[uuid]
            has[uuid] = min(range(SEATS), key=lambda n, seats=seats: (n in seats, seats.get(n, False), n))
            seats[has[uuid]] = True
        seats_of_tenant.append(VgpuSeat(uuid, has[uuid]))
    return tuple(seats_of_tenant)


def provider_of(requested: str, uuids: Sequence[str], dmem: frozenset[str], where: str) -> tuple[str, str]:
    """Return the provider, and the reason why no stronger provider is used."""
    without = [uuid for uuid in uuids if uuid not in dmem]
    if requested == MPS:
        return MPS, "a fault of one client ends all clients"
    if requested == DMEM and without:
        raise PlanError(
            where,
            "the kernel cannot limit the memory of %s (no region in dmem.capacity)" % " and ".join(without),
            "Use Linux 6.14 with driver 615 or newer, or use auto or preload.",
        )
    if requested == AUTO:
        return (PRELOAD, "no dmem here") if without else (DMEM, "")
    return requested, ""
