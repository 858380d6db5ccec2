# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan the change from the current to the desired MPS daemons of a host. Pure.

A daemon keeps running if the plan does not change its GPUs or instance. New limits are set while the daemon runs. For
every other change, the daemon is stopped before the GPUs change and started afterwards.
"""

from __future__ import annotations

from typing import Callable, Iterable, Mapping, Sequence

from ...errors import PlanError
from ...frozen import frozen
from ...holders.model import MPS, UNKNOWN, short
from ...holders.mps_control import daemon_of
from ...layout.types import Entry, Layout, MigInstance
from ...model import Gpu, GpuInstance, Holder, Host
from ...plan.disturbance import Disturbance
from ...plan.gpu_plan import GpuPlan, Plan
from ...sizes import format_size
from .files import name_problem
from .model import KEY, Mps, MpsDaemon, MpsPlace, MpsSeen
from .rules import limits_bind, most_clients
from .steps import AdjustMps, MpsPlan, StartMps, StopMps

MIB = 1 << 20


@frozen
class WantedDaemon:
    """A desired daemon, its position in the layout, and its GPUs' compute mode."""

    daemon: MpsDaemon
    where: str
    compute_mode: str = "exclusive_process"


def wanted(
    layout: Layout, plan: Plan, driver_version: str | None, seen: Sequence[MpsSeen] = ()
) -> tuple[WantedDaemon, ...]:
    """Return the desired daemons in the order of their names.

    The daemons serve the GPUs in their state after `plan`. Among equal instances of a GPU, a daemon keeps the one that
    it serves.

    Raises PlanError if a daemon needs more clients than the GPU supports, needs more memory than the GPU has, has a
    duplicate name, or is on a split instance.
    """
    found: list[WantedDaemon] = []
    for entry in layout.entries:
        gpus = [gpu for gpu in plan.gpus if gpu.target.where == entry.where]
        found += _of_entry(entry, gpus, driver_version)
        found += _of_instances(entry, gpus, driver_version, seen)
        found += _of_clients(entry, gpus, driver_version)
    names: dict[str, WantedDaemon] = {}
    for each in found:
        problem = name_problem(each.daemon.name)
        if problem is not None:
            raise PlanError("%s: %s" % (each.where, problem.where), problem.problem, problem.cure)
        other = names.setdefault(each.daemon.name, each)
        if other is not each:
            raise PlanError(
                each.where,
                "the MPS daemon %s of %s would have the same name" % (each.daemon.name, other.where),
                "Give one of them another name.",
            )
    return tuple(names[name] for name in sorted(names))


def devices(daemon: MpsDaemon, gpus: Iterable[Gpu]) -> tuple[str, ...] | None:
    """Return the UUIDs of the daemon's GPUs, or its MIG device's UUID.

    Returns None if a device does not exist.
    """
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    found = [_device(place, by_uuid.get(place.gpu_uuid)) for place in daemon.places]
    return None if None in found else tuple(uuid for uuid in found if uuid)


def plan(
    daemons: Sequence[WantedDaemon],
    seen: Sequence[MpsSeen],
    gpus: Plan,
    host: Host,
    adjustable: Callable[[MpsSeen, MpsDaemon, Sequence[str]], bool],
    leave_others: bool = True,
) -> MpsPlan:
    """Return the steps from the `seen` daemons to the desired ones.

    `adjustable` decides which daemons can get new limits without a restart. A daemon that the layout does not have is
    stopped if an entry selects one of its GPUs. Other such daemons are stopped only if `leave_others` is false.
    """
    by_name = {each.daemon.name: each for each in daemons}
    plans = {each.gpu.uuid: each for each in gpus.gpus}
    stops, adjusts, starts, kept, disturbs = [], [], [], [], []
    indices = tuple((gpu.uuid, gpu.index) for gpu in host.gpus)
    for one in sorted(seen, key=lambda each: each.daemon.name):
        want = by_name.pop(one.daemon.name, None)
        if want is None:
            if not leave_others or any(place.gpu_uuid in plans for place in one.daemon.places):
                stops.append(StopMps(one, forget=True))
                disturbs += _disturbed(one, indices)
            continue
        stays = _stays(one, want.daemon, plans, host)
        if stays and _as_wanted(one, want.daemon):
            kept.append(one)
        elif stays and adjustable(one, want.daemon, one.devices):
            adjusts.append(AdjustMps(one, want.daemon))
        else:
            if one.running:
                stops.append(StopMps(one, forget=False))
                disturbs += _disturbed(one, indices)
            starts.append(StartMps(want.daemon, want.where))
    starts += [StartMps(each.daemon, each.where) for each in by_name.values()]
    starts.sort(key=lambda step: step.name)
    return MpsPlan(tuple(stops), tuple(adjusts), tuple(starts), tuple(kept), tuple(disturbs), indices)


def _stays(one: MpsSeen, daemon: MpsDaemon, plans: Mapping[str, GpuPlan], host: Host) -> bool:
    """Return whether a running daemon can keep running.

    The daemon must have the desired devices, and the plan must not change its GPUs.
    """
    return (
        one.running
        and one.problem is None
        and one.daemon.places == daemon.places
        and one.devices == devices(daemon, host.gpus)
        and all(_survives(place, plans.get(place.gpu_uuid), host) for place in one.daemon.places)
    )


def _disturbed(one: MpsSeen, indices: tuple[tuple[str, int], ...]) -> list[Disturbance]:
    """Return the clients whose daemon the plan stops."""
    what = "mps %s on %s (its daemon would stop)" % (
        one.daemon.name,
        MpsPlan(indices=indices).places(one.daemon.places),
    )
    return [Disturbance(what, who) for who in [clients(one)] if who]


def serves(seen: Iterable[MpsSeen], clients: bool = True) -> dict[str, frozenset[int]]:
    """Return the PIDs of MPS daemons and their servers, by GPU UUID.

    Includes their clients if `clients` is true.
    """
    found: dict[str, frozenset[int]] = {}
    for one in seen:
        served = (client.pid for client in one.clients if clients and client.attested)
        servers = set(one.server_pids) - set(one.unattested_server_pids)
        pids = {one.pid, *servers, *served} - {None}
        for place in one.daemon.places:
            found[place.gpu_uuid] = found.get(place.gpu_uuid, frozenset()) | frozenset(pids)
    return found


def _as_wanted(one: MpsSeen, daemon: MpsDaemon) -> bool:
    return (
        one.daemon == daemon
        and not one.outdated
        and one.active_thread_percentage == daemon.active_thread_percentage
        and all(limit == daemon.pinned_memory_limit_bytes for limit in one.pinned_memory_limits_bytes)
    )


def clients(one: MpsSeen) -> tuple[Holder, ...]:
    """Return the processes that would lose their work if the daemon stops.

    If a daemon does not answer, returns one unknown holder for all its clients.
    """
    gpu = one.daemon.places[0].gpu_uuid
    if one.running and one.active_thread_percentage is None:
        who = "clients that its daemon (pid %s) does not report: %s" % (one.pid, one.problem or "it does not answer")
        return (Holder(gpu, None, UNKNOWN, who, one.pid),)
    found = []
    for client in one.clients:
        about = [text for text in (short(client.command), client.user and "user %s" % client.user) if text]
        who = "pid %d%s, its client" % (client.pid, " (%s)" % ", ".join(about) if about else "")
        if client.attested:
            ticks = client.started_ticks
            found.append(Holder(gpu, None, MPS, who, client.pid, client.user, client.command, started_ticks=ticks))
        else:
            # The process is not ended, because a user's program may have answered in place of the daemon and named any
            # process.
            who += " only according to the server %d, so it is not ended" % client.server_pid
            found.append(Holder(gpu, None, MPS, who))
    return tuple(found)


def _of_entry(entry: Entry, gpus: Sequence[GpuPlan], driver_version: str | None) -> list[WantedDaemon]:
    if entry.sharing != KEY:
        return []
    where = "%s.mps" % entry.where
    for gpu in gpus:
        _check(where, gpu.gpu, entry.part, gpu.gpu.memory_total_bytes, driver_version)
    places = [MpsPlace(gpu.gpu.uuid) for gpu in gpus]
    if entry.part.daemon_per == "entry":
        return [WantedDaemon(_daemon(entry.part, entry.part.name, places), where)] if places else []
    names = [entry.part.name if _one_gpu(entry) else "%s-gpu%d" % (entry.part.name, gpu.gpu.index) for gpu in gpus]
    return [WantedDaemon(_daemon(entry.part, name, [place]), where) for name, place in zip(names, places)]


def _of_clients(entry: Entry, gpus: Sequence[GpuPlan], driver_version: str | None) -> list[WantedDaemon]:
    """Return a daemon for each GPU of an entry if another technique needs MPS.

    These daemons have no limits, because the clients set their own in their environment.
    """
    clients = getattr(entry.part, "mps_clients", None)
    if clients is None:
        return []
    where, mps = "%s.%s" % (entry.where, entry.sharing), Mps("", clients, 100, oversubscribe=True)
    for gpu in gpus:
        _check(where, gpu.gpu, mps, gpu.gpu.memory_total_bytes, driver_version)
    return [
        WantedDaemon(_daemon(mps, daemon_of(gpu.gpu.uuid), [MpsPlace(gpu.gpu.uuid)]), where, "default") for gpu in gpus
    ]


def _one_gpu(entry: Entry) -> bool:
    """Return whether the entry selects exactly one GPU on every host.

    The name of its daemon then has no GPU index, and does not change when a card is added.
    """
    return len(entry.selectors) == 1 and entry.selectors[0].names_one_gpu


def _of_instances(
    entry: Entry, gpus: Sequence[GpuPlan], driver_version: str | None, seen: Sequence[MpsSeen]
) -> list[WantedDaemon]:
    parts = entry.instances
    for position, part in enumerate(parts):
        if part.sharing == KEY and len(part.compute_slices) > 1:
            raise PlanError(
                "%s.mig[%d].mps" % (entry.where, position),
                "a split %s has several MIG devices, but a daemon serves only one" % part.profile,
                "Remove compute_instances or mps.",
            )
    if all(part.sharing != KEY for part in parts):
        return []
    found = []
    for gpu in gpus:
        profiles = {profile.name: profile for profile in gpu.gpu.mig.profiles}
        most = max(profile.compute_slices for profile in profiles.values())
        for position, start in _placed(gpu, entry, seen):
            part = parts[position]
            if part.sharing != KEY:
                continue
            where, profile = "%s.mig[%d].mps" % (entry.where, position), profiles[part.profile]
            slices = (profile.compute_slices, most)
            _check(where, gpu.gpu, part.part, profile.memory_mib * MIB, driver_version, slices)
            name = _name_inside(entry, part, gpu.gpu, start)
            found.append(WantedDaemon(_daemon(part.part, name, [MpsPlace(gpu.gpu.uuid, part.profile, start)]), where))
    return found


def _name_inside(entry: Entry, part: MigInstance, gpu: Gpu, start: int) -> str:
    single = _one_gpu(entry) and part.count == 1
    return part.part.name if single else "%s-gpu%d-%d" % (part.part.name, gpu.index, start)


def _placed(gpu: GpuPlan, entry: Entry, seen: Sequence[MpsSeen]) -> list[tuple[int, int]]:
    """Return (position in the entry's `mig`, start) for each planned instance.

    An instance with a placement has a fixed start. Among equal instances, a daemon keeps its instance, and a new daemon
    gets the one with the lowest start.
    """
    free = [(i.profile, i.compute_slices, i.start) for i in gpu.planned()]
    whole = {profile.name: (profile.compute_slices,) for profile in gpu.gpu.mig.profiles}
    serving = {
        (place.start, one.daemon.name) for one in seen for place in one.daemon.places if place.gpu_uuid == gpu.gpu.uuid
    }

    def unlike(position: int, start: int) -> bool:
        part = entry.instances[position]
        return part.sharing != KEY or (start, _name_inside(entry, part, gpu.gpu, start)) not in serving

    wants = [(n, part) for n, part in enumerate(entry.instances) for _unused in range(part.count)]
    found = []
    # Assign in this order: instances with a placement, those that keep their daemon, those with a new daemon, those
    # without a daemon.
    while wants:
        options = [
            (part.placement is None, unlike(n, start), part.sharing != KEY, start, n)
            for n, part in wants
            for profile, slices, start in free
            if profile == part.profile
            and slices == (tuple(sorted(part.compute_slices, reverse=True)) or whole[part.profile])
            and part.placement in (None, start)
        ]
        if not options:
            break
        *_order, start, position = min(options)
        wants.remove(next(want for want in wants if want[0] == position))
        free = [place for place in free if place[2] != start]
        found.append((position, start))
    return sorted(found)


def _daemon(mps: Mps, name: str, places: Sequence[MpsPlace]) -> MpsDaemon:
    return MpsDaemon(name, tuple(places), mps.clients, mps.active_thread_percentage, mps.pinned_memory_limit_bytes)


def _check(
    where: str,
    gpu: Gpu,
    mps: Mps,
    memory_bytes: int | None,
    driver_version: str | None,
    slices: tuple[int, int] | None = None,
) -> None:
    place = "%s on %s" % (where, gpu.label)
    if limits_bind(gpu.compute_capability) is False:
        raise PlanError(
            place,
            "MPS cannot limit clients of a GPU before Volta (compute capability %s)" % gpu.compute_capability,
            "Choose another sharing for this GPU (exclusive, shared or time_slicing).",
        )
    most = most_clients(gpu.compute_capability, driver_version, slices)
    if most is not None and mps.clients > most:
        raise PlanError(
            place,
            "it has %d clients, but MPS supports only %d on this GPU" % (mps.clients, most),
            "Lower clients.",
        )
    limit = mps.pinned_memory_limit_bytes
    if limit is None:
        return
    if memory_bytes is None:
        raise PlanError(
            place,
            "the driver reports no memory size, so pinned_memory_limit cannot be checked",
            "Remove pinned_memory_limit.",
        )
    has = format_size(memory_bytes // MIB * MIB)
    if limit > memory_bytes:
        raise PlanError(place, "a limit of %s exceeds its memory of %s" % (format_size(limit), has), "Lower it.")
    if mps.clients * limit > memory_bytes and not mps.oversubscribe:
        raise PlanError(
            place,
            "%d clients of %s each exceed its memory of %s" % (mps.clients, format_size(limit), has),
            "Lower clients or pinned_memory_limit, or set oversubscribe: true.",
        )


def _survives(place: MpsPlace, plan: GpuPlan | None, host: Host) -> bool:
    """Return whether the GPU's plan leaves the daemon's devices unchanged."""
    if plan is None:
        return True
    if any(step.switches(plan.gpu) for step in plan.steps):
        return False
    if not place.in_mig:
        return not plan.gpu.mig.enabled
    instance = _instance(place, plan.gpu)
    gone = {step.ended_instance for step in plan.steps}
    return instance is not None and instance.id not in gone


def _device(place: MpsPlace, gpu: Gpu | None) -> str | None:
    if gpu is None or place.in_mig != gpu.mig.enabled:
        return None
    if not place.in_mig:
        return gpu.uuid
    instance = _instance(place, gpu)
    parts = instance.compute_instances if instance is not None else ()
    return parts[0].mig_uuid if len(parts) == 1 else None


def _instance(place: MpsPlace, gpu: Gpu) -> GpuInstance | None:
    found = [i for i in gpu.mig.instances if (i.profile, i.placement.start) == (place.profile, place.start)]
    return found[0] if found else None
