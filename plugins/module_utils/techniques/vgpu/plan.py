# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From the tenants that a host has to those that its layout wants: a pure function, beside the plan of the GPUs.

Tenants that are there stay on their GPUs and seats where they can; new quotas are given to them as they run.
"""

from __future__ import annotations

from typing import Callable, Mapping, Sequence

from ...disturbance import Disturbance
from ...errors import PlanError
from ...frozen import frozen
from ...gpu_plan import Plan
from ...layout.matching import matches
from ...layout.types import Entry, Layout
from ...model import Gpu, Holder, Host, short_label
from . import names as vgpu_names
from .files import name_problem
from .fit import Bin, Demand, TooHardError, first_misfit, largest, pack
from .model import AUTO, DMEM, MOST_GPUS, MPS, PRELOAD, SEATS, VgpuName, VgpuSeat, VgpuSeen, VgpuTenant
from .names import Names
from .part import Tenant, Vgpu, vgpu_of
from .steps import AddTenant, ChangeTenant, RemoveTenant, VgpuPlan, size

# Ratios are binary fractions: 1.15 * 100 is a hair below 115.
_ROUNDING = 1e-6

#: Processes of a tenant on a GPU.
Processes = Callable[[str, str], Sequence[Holder]]


@frozen
class WantedTenant:
    """A tenant, the part of the layout that wants it, and why its provider is not another one where that was open.

    `kept_names`: names that the layout does not have, and that the tenant keeps until the processes that have them end.
    """

    tenant: VgpuTenant
    where: str
    why: str = ""
    kept_names: tuple[VgpuName, ...] = ()


def wanted(
    layout: Layout, plan: Plan, seen: Sequence[VgpuSeen] = (), dmem: frozenset[str] = frozenset()
) -> tuple[WantedTenant, ...]:
    """The tenants that the layout asks for, each with its GPUs and seats, by name.

    `dmem`: UUIDs of the GPUs whose memory the kernel bounds. Raises PlanError where one cannot be had: no room, a pin to
    another GPU, a name or provider that cannot be.
    """
    names = vgpu_names.match(layout, seen, {gpu.gpu.uuid: gpu.gpu.label for gpu in plan.gpus})
    found: list[WantedTenant] = []
    for entry in layout.entries:
        vgpu = vgpu_of(entry)
        if vgpu is not None:
            gpus = [gpu.gpu for gpu in plan.gpus if gpu.target.where == entry.where]
            found += _of_entry(entry, vgpu, gpus, names, [one.tenant for one in seen], dmem)
    return tuple(sorted(found, key=lambda each: each.tenant.name))


def plan(
    tenants: Sequence[WantedTenant],
    seen: Sequence[VgpuSeen],
    gpus: Plan,
    host: Host,
    processes: Processes,
    leave_others: bool = True,
) -> VgpuPlan:
    """The steps from the tenants that were `seen` to those wanted.

    A tenant that the layout does not want is removed where the layout names one of its GPUs; on others it is left alone, as
    they are, until `leave_others` is false. Processes of a tenant on a GPU that it has to leave, or of one that is removed,
    would escape its quota: they are in the way.
    """
    by_key = {each.tenant.key: each for each in tenants}
    kept_names = tuple((each.tenant.name, name) for each in tenants for name in each.kept_names)
    named = {each.gpu.uuid for each in gpus.gpus}
    removes, changes, kept, disturbs = [], [], [], []
    indices = tuple((gpu.uuid, gpu.index) for gpu in host.gpus)
    for one in sorted(seen, key=lambda each: each.tenant.name):
        want = by_key.pop(one.tenant.key, None)
        if want is None:
            if not leave_others or named.intersection(one.tenant.gpus):
                removes.append(RemoveTenant(one))
                disturbs += unheld(removes[-1], processes, indices)
        elif one.tenant == want.tenant and not one.outdated:
            kept.append(one)
        else:
            change = ChangeTenant(one, want.tenant)
            changes.append(change)
            disturbs += unheld(change, processes, indices)
    # What one gives up may be what another one gets.
    changes.sort(
        key=lambda c: (bool(set(c.tenant.gpus) - set(c.seen.tenant.gpus)), c.grows_bytes, _grows_percent(c), c.name)
    )
    adds = [AddTenant(each.tenant, each.where, each.why) for each in by_key.values()]
    return VgpuPlan(tuple(removes), tuple(changes), tuple(adds), tuple(kept), tuple(disturbs), indices, kept_names)


def unheld(
    step: RemoveTenant | ChangeTenant, processes: Processes, indices: Sequence[tuple[str, int]]
) -> list[Disturbance]:
    """Return whom the step would let go on without a quota: the processes of a tenant that leaves a GPU, changes its provider
    or is removed.
    """
    index, tenant = dict(indices), step.seen.tenant
    found = []
    for uuid in step.unheld:
        # What cannot be determined is among the processes of each name.
        who = list(dict.fromkeys(holder for name in tenant.names for holder in processes(name, uuid)))
        if who:
            what = "vgpu %s (%s %s)" % (tenant.name, step.reason(uuid), _short_label(index, uuid))
            found.append(Disturbance(what, tuple(who)))
    return found


def _short_label(index: Mapping[str, int], uuid: str) -> str:
    # The GPU may have gone from the host.
    return short_label(index[uuid], uuid) if uuid in index else "gpu %s" % uuid


def _grows_percent(change: ChangeTenant) -> int:
    return change.tenant.sm_percent - change.seen.tenant.sm_percent


def _of_entry(
    entry: Entry,
    vgpu: Vgpu,
    gpus: Sequence[Gpu],
    names: Mapping[str, Names],
    there: Sequence[VgpuTenant],
    dmem: frozenset[str],
) -> list[WantedTenant]:
    where = {tenant.name: "%s.vgpu.tenants[%d]" % (entry.where, n) for n, tenant in enumerate(vgpu.tenants)}
    if vgpu.provider == MPS and vgpu.policy != "fixed":
        raise PlanError(
            "%s.vgpu.policy" % entry.where,
            "MPS holds clients to their share always, which is `policy: fixed`",
            "Take policy away, or use another provider.",
        )
    demands = [_demand(tenant, vgpu, gpus, where[tenant.name], names[tenant.name].now) for tenant in vgpu.tenants]
    packed = _packed(entry, vgpu, gpus, demands, where)
    found = []
    taken = _taken(gpus, there, {names[demand.name].key: set(packed[demand.name]) for demand in demands})
    for tenant in vgpu.tenants:
        own = names[tenant.name]
        seats = _seats(packed[tenant.name], taken, own.now)
        provider, why = _provider(vgpu.provider, packed[tenant.name], dmem, "%s.vgpu.provider" % entry.where)
        made = VgpuTenant(
            tenant.name,
            tenant.memory_bytes,
            tenant.sm_percent,
            seats,
            vgpu.policy,
            tenant.priority,
            provider,
            tenant.group,
            tenant.oversubscribe_managed,
            None if own.key == tenant.name else own.key,
            own.aliases,
        )
        found.append(WantedTenant(made, where[tenant.name], why, own.kept))
    return found


def _demand(tenant: Tenant, vgpu: Vgpu, gpus: Sequence[Gpu], where: str, now: VgpuTenant | None) -> Demand:
    for key, name in (("name", tenant.name), ("was", tenant.was)):
        problem = None if name is None else name_problem(name)
        if problem is not None:
            raise PlanError("%s.%s: %s" % (where, key, problem.where), problem.problem, problem.cure)
    if vgpu.provider == MPS and tenant.gpus > 1:
        # The pipe directory of a process is one daemon's.
        problem_text = "a process works through one MPS daemon, and each GPU of the entry has its own"
        raise PlanError("%s.gpus" % where, problem_text, "Lower gpus, or use another provider.")
    if tenant.gpus > MOST_GPUS:
        problem_text = "the tenant spans %d GPUs, and a tenant can have %d" % (tenant.gpus, MOST_GPUS)
        raise PlanError("%s.gpus" % where, problem_text, "Lower gpus.")
    pin = None
    if tenant.gpu is not None:
        pinned = [gpu.uuid for gpu in gpus if matches(tenant.gpu, gpu)]
        if not pinned:
            raise PlanError(
                "%s.gpu" % where,
                "the tenant is pinned to %s, which is none of its entry's GPUs" % tenant.gpu,
                "Pin it to one of them: %s." % ", ".join(gpu.label for gpu in gpus),
            )
        pin = pinned[0]
    there = frozenset(now.gpus) if now is not None else frozenset()
    return Demand(tenant.name, tenant.memory_bytes, tenant.sm_percent, tenant.gpus, pin, there)


def _packed(
    entry: Entry, vgpu: Vgpu, gpus: Sequence[Gpu], demands: Sequence[Demand], where: dict[str, str]
) -> dict[str, tuple[str, ...]]:
    for gpu in gpus:
        if gpu.memory_total_bytes is None:
            raise PlanError(
                "%s.vgpu on %s" % (entry.where, gpu.label),
                "its driver reports no memory size, which tenants are given parts of",
                "Choose another sharing for it (exclusive, shared, time_slicing or mps).",
            )
    bins = [
        Bin(
            gpu.uuid,
            int((gpu.memory_total_bytes or 0) * vgpu.oversubscribe_memory_ratio + _ROUNDING),
            100 * vgpu.oversubscribe_sm_ratio + _ROUNDING,
            SEATS,
        )
        for gpu in gpus
    ]
    try:
        packed = pack(bins, demands)
        if packed is not None:
            return packed
        misfit, free = first_misfit(bins, demands)
        alone = pack(bins, [misfit]) is not None
    except TooHardError:
        raise PlanError(
            "%s.vgpu" % entry.where,
            "no way was found to pack these %d tenants onto %d GPUs, and not every way could be tried"
            % (len(demands), len(gpus)),
            "Pin tenants with gpu, or write an entry for each of some groups of GPUs.",
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
        "%s does not fit beside those before it. Free is %s"
        % (tenant, ", ".join("%s on gpu %d" % (_room(each), index[each.uuid]) for each in free)),
        "Lower memory or sm_percent, move tenants, or raise oversubscribe.",
    )


def _too_large(
    tenant: str, misfit: Demand, bins: Sequence[Bin], gpus: Sequence[Gpu], memory_ratio: float
) -> tuple[str, str]:
    """Return what is wrong with a tenant that has no room even on empty GPUs, and the cure."""
    if misfit.count > len(bins):
        has = "1 GPU" if len(bins) == 1 else "%d GPUs" % len(bins)
        return "%s spans more GPUs than its entry, which has %s" % (tenant, has), "Lower gpus, or name more GPUs."
    sizes = ", ".join(
        "%s on gpu %d" % (size(gpu.memory_total_bytes or 0), gpu.index)
        for gpu in gpus
        if misfit.pin in (None, gpu.uuid)
    )
    times = "" if memory_ratio == 1 else ", times %g by oversubscribe.memory" % memory_ratio
    return (
        "%s is larger than the memory of its GPUs, which is %s%s" % (tenant, sizes, times),
        "The largest memory that fits is %s." % size(largest(bins, misfit)),
    )


def _room(free: Bin) -> str:
    if not free.seats:
        return "no seat (a GPU has %d)" % SEATS
    return "%s and %d %%" % (size(free.memory_bytes), free.sm_percent)


def _taken(gpus: Sequence[Gpu], there: Sequence[VgpuTenant], packed: dict[str, set[str]]) -> dict[str, dict[int, bool]]:
    """Return by GPU the seats that tenants have, and whether the tenant keeps it. `packed` is by the keys of tenants."""
    return {
        gpu.uuid: {
            seat.seat: gpu.uuid in packed.get(tenant.key, ())
            for tenant in there
            for seat in tenant.seats
            if seat.gpu_uuid == gpu.uuid
        }
        for gpu in gpus
    }


def _seats(uuids: Sequence[str], taken: dict[str, dict[int, bool]], now: VgpuTenant | None) -> tuple[VgpuSeat, ...]:
    """The tenant's seats. A new one is free: processes of a tenant that goes may still use theirs."""
    has = {seat.gpu_uuid: seat.seat for seat in now.seats} if now is not None else {}
    if now is not None and set(uuids) == set(now.gpus):
        # In the order that its processes know.
        return now.seats
    found = []
    for uuid in uuids:
        if uuid not in has:
            seats = taken[uuid]
            has[uuid] = min(range(SEATS), key=lambda n, seats=seats: (n in seats, seats.get(n, False), n))
            seats[has[uuid]] = True
        found.append(VgpuSeat(uuid, has[uuid]))
    return tuple(found)


def _provider(asked: str, uuids: Sequence[str], dmem: frozenset[str], where: str) -> tuple[str, str]:
    """The provider, and why not a stronger one."""
    without = [uuid for uuid in uuids if uuid not in dmem]
    if asked == MPS:
        return MPS, "a fault of one client ends all"
    if asked == DMEM and without:
        raise PlanError(
            where,
            "the kernel does not bound the memory of %s (no region of it in dmem.capacity)" % " and ".join(without),
            "It takes Linux 6.14 and a driver that registers its memory there (release 615); or use auto or preload.",
        )
    if asked == AUTO:
        return (PRELOAD, "no dmem here") if without else (DMEM, "")
    return asked, ""
