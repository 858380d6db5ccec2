# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find each GPU's current workloads, and the GPUs to exclude. Pure.

A GPU is included only if its history certainly belongs to its current workload. All others are excluded, with a reason.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections import Counter, defaultdict
from typing import Any, Mapping, NamedTuple, Sequence, Tuple

from ...module_utils.change import planner
from ...module_utils.change.targets import targets
from ...module_utils.errors import FleetError
from ...module_utils.layout.types import Entry, Layout
from ...module_utils.model import Gpu, GpuInstance, Host
from ..audit.holdings import Price, is_held, price_of, using
from ..audit.model import Audit, Finding, Holding, Subject, Verdict
from ..audit.series import QUIET_BUSY_RATIO
from ..host_results import lost_gpu
from ..packing.geometry import geometry
from ..packing.model import WHOLE, Shape, Standing, mig, share
from ..techniques.protocol import FleetTechnique
from ..techniques.registry import TECHNIQUES, technique_of, tenants_of
from .model import GpuToday, Occupant, Wish
from .observed import NO_LAYOUT, HostToday, model_of, without_leases
from .reclaim import UNNAMED
from .wishes import wish_of

#: Verdicts that do not show a workload's need, and the reasons to exclude such a workload.
_BLIND = {
    "unhealthy": "the GPU is unhealthy: repair it first",
    "broken_metrics": "its metrics contradict each other",
    "no_data": "too little data",
    "standby": "it may be a model server that waits for clients",
    "stalled": "it looks hung: ask its owner first",
    "held_without_process": "nothing runs on it: see the list of idle workloads",
}
#: A tenant in gpu_info's result: (technique, row).
_TenantRow = Tuple[FleetTechnique, Mapping[str, Any]]


class Place(NamedTuple):
    """The part of a GPU that a workload uses: shape, start and GPU instance ID."""

    shape: Shape
    start: int | None = None
    instance: str = ""


def fleet_today(
    audit: Audit,
    hosts: Mapping[str, HostToday],
    wishes: Mapping[str, Sequence[Wish]],
    prices: Sequence[Price] = (),
    least_seconds: float = 0.0,
) -> tuple[GpuToday, ...]:
    """Return the GPUs of all hosts that answered, sorted by host and index.

    A workload that has run for less than `least_seconds` is excluded, because a part of the history is an earlier
    workload's.
    """
    findings: dict[tuple[str, str], list[Finding]] = defaultdict(list)
    for found in audit.findings:
        findings[found.holding.subject.host, found.holding.subject.gpu_uuid].append(found)
    gpus = []
    for host, today in hosts.items():
        try:
            wrong = today.problem or _lost(today.state) or _drift(today.layout, today.host)
        except FleetError as error:
            wrong = NO_LAYOUT % error
        spread = _spread(today.state)
        watched = any(_history(found) for key, rows in findings.items() if key[0] == host for found in rows)
        for gpu in today.host.gpus:
            one = _GpuReading(
                host, gpu, today.state, today.entries.get(gpu.uuid), findings[host, gpu.uuid], wishes.get(host, ())
            )
            one.watched, one.spread = watched, spread
            one.since = audit.made_at_seconds - least_seconds
            one.least_seconds = least_seconds
            gpus.append(dataclasses.replace(one.look(wrong), price_per_hour=price_of(gpu.name, prices)))
    return _named(gpus)


def _drift(layout: Layout, host: Host) -> str:
    """Describe how the host differs from its layout, or return "".

    Such a host is excluded, because applying a proposal would also remove the differences.
    """
    plan = planner.plan(host.gpus, targets(without_leases(layout), host.gpus))
    if not plan.changes_devices:
        return ""
    first = next(each for each in plan.gpus if each.shown_steps)
    return "the host differs from its layout, apply the layout first (%s)" % first


def _lost(state: Mapping[str, Any]) -> str:
    lost = state.get("lost_gpus") or ()
    if not lost:
        return ""
    first = lost_gpu(lost[0])
    return "%s of the host %s, repair it first" % (first.label, first.state)


def _history(found: Finding) -> bool:
    return found.holding.memory is not None or found.holding.busy is not None


class _GpuReading:
    """Reader of one GPU and its workloads.

    `watched` is true if any GPU on the host has a history. `spread` has holders that use several of the host's GPUs.
    """

    watched = False
    spread: frozenset[str] = frozenset()
    #: The latest start at which a workload's history is still long enough.
    since = math.inf
    least_seconds = 0.0

    def __init__(
        self,
        host: str,
        gpu: Gpu,
        state: Mapping[str, Any],
        entry: Entry | None,
        findings: Sequence[Finding],
        wishes: Sequence[Wish],
    ) -> None:
        self.host, self.gpu, self.state, self.entry, self.wishes = host, gpu, state, entry, wishes
        self.data = next(row for row in state["gpus"] if row["uuid"] == gpu.uuid)
        self.model = model_of(gpu.name)
        self.findings = {found.holding.subject.place[2]: found for found in findings if not _is_tenant(found)}
        self.tenants = {found.holding.subject.name: found for found in findings if _is_tenant(found)}

    def look(self, wrong: str = "") -> GpuToday:
        """Return the GPU with its workloads.

        `wrong` is why the whole host is excluded, or "".
        """
        found = GpuToday(self.host, self.gpu, self.model)
        why = wrong or self._whole()
        rows = [
            (technique, row)
            for technique, row in tenants_of(self.state)
            if any(place.get("uuid") == self.gpu.uuid for place in row.get("gpus") or ())
        ]
        if self.gpu.mig.instances:
            occupants, vacant = self._instances(bool(why))
            found = dataclasses.replace(found, occupants=tuple(occupants), vacant=tuple(vacant))
        elif rows:
            why = why or self._sick() or self._odd_tenants(rows)
            found = dataclasses.replace(found, occupants=tuple(itertools.starmap(self._tenant, rows)))
        else:
            occupant = self._one()
            found = dataclasses.replace(found, occupants=(occupant,) if occupant else ())
            if not occupant and not why and not self.findings:
                why = "the audit excludes it"
        for occupant in found.occupants:
            if occupant.left and not why:
                why = (
                    occupant.left
                    if len(found.occupants) == 1
                    else "%s is excluded: %s" % (occupant.place, occupant.left)
                )
        occupants = tuple(dataclasses.replace(one, left=one.left or why) for one in found.occupants)
        return dataclasses.replace(found, occupants=occupants, left=why)

    def _whole(self) -> str:
        """Return why the whole GPU must be excluded, or ""."""
        if not self.model:
            return "the catalogue of models does not have %s" % self.gpu.name
        if self.gpu.mig.enabled != self.gpu.mig.pending:
            return "a change of its MIG mode needs a reset"
        if self.data.get("holders") is None:
            return "its holders are unknown"
        doubt = next((row for row in self.data["holders"] if row.get("kind") == "unknown"), None)
        if doubt:
            return "its holders are unknown: %s" % doubt.get("who", "")
        if self.entry is not None and self.entry.leases is not None:
            return "it is for leases (%s)" % self.entry.where
        technique = technique_of(self.entry.sharing) if self.entry is not None else None
        if technique is not None and technique.mixes_histories:
            return "it is shared by %s, so its history cannot be assigned to one workload" % technique.key
        for each in TECHNIQUES:
            server = each.serves(self.state, self.gpu.uuid)
            if server:
                return "%s serves it, so its history cannot be assigned to one workload" % server
        return ""

    def _sick(self) -> str:
        """Return why a GPU with tenants is unhealthy, or "".

        This check is separate, because findings about tenants do not have the GPU's health.
        """
        found = self.findings.get("")
        if found is None or found.verdict.word != "unhealthy":
            return ""
        return "%s (%s)" % (_BLIND["unhealthy"], found.verdict.reason.rstrip("."))

    def _one(self) -> Occupant | None:
        """Return a whole GPU's workload, or None if it is free."""
        found = self.findings.get("")
        holders = _holders(self.data)
        if found is None:
            return None if not holders else self._occupant(None, Place(WHOLE), holders, "the audit excludes it")
        if found.verdict.word == "free":
            return None
        left = ""
        if is_held(found.holding) is None:
            left = "its holders are unknown"
        elif len({row.get("unit_or_container") or row.get("job") for row in holders}) > 1:
            left = "it has several holders, so its history cannot be assigned to one workload"
        return self._occupant(found, Place(WHOLE), holders, left)

    def _instances(self, out: bool) -> tuple[list[Occupant], list[Standing]]:
        occupants, vacant = [], []
        rows = {row["id"]: row for row in self.data["mig"]["instances"]}
        for instance in self.gpu.mig.instances:
            found = self.findings.get(str(instance.id))
            holders = _holders(rows[instance.id])
            shape, start = mig(instance.profile), instance.placement.start
            held = is_held(found.holding) if found else None
            if found and not holders and self._plain(instance) and self._unused(found):
                vacant.append(Standing(self.host, self.gpu.index, shape, start))
                continue
            left = ""
            if not out and not geometry(self.model).can_hold(shape):
                left = "the catalogue does not have the profile %s of a %s" % (instance.profile, self.model)
            elif not self._plain(instance):
                left = "it is split into compute instances"
            elif found is None:
                left = "the audit excludes it"
            elif held is None:
                left = "its holders are unknown"
            occupants.append(self._occupant(found, Place(shape, start, str(instance.id)), holders, left))
        return occupants, vacant

    def _unused(self, found: Finding) -> bool:
        """Return whether the instance is unused.

        An instance is unused if its verdict is free. A new instance without a verdict is unused if it is monitored and shows no
        activity.
        """
        if found.verdict.word == "free":
            return True
        holding = found.holding
        if found.verdict.word != "no_data" or is_held(holding) is not False or not self.watched:
            return False
        busiest = max((stat.max or 0.0 for stat in (holding.busy, holding.processes) if stat is not None), default=0.0)
        return busiest < QUIET_BUSY_RATIO

    @staticmethod
    def _plain(instance: GpuInstance) -> bool:
        return len(instance.compute_instances) <= 1

    def _odd_tenants(self, rows: Sequence[_TenantRow]) -> str:
        """Return why the tenants' layout entry must not be rewritten, or ""."""
        for technique in dict.fromkeys(technique for technique, _row in rows):
            why = technique.fixed([row for each, row in rows if each is technique], self.entry)
            if why:
                return why
        if self.model and not geometry(self.model).fits(tuple(sorted(itertools.starmap(_quota, rows)))):
            return "the quotas of its tenants leave no room for the driver's memory"
        return ""

    def _tenant(self, technique: FleetTechnique, row: Mapping[str, Any]) -> Occupant:
        name = str(row["name"])
        found = self.tenants.get(name)
        left = "" if found else "the audit excludes it"
        holders = _holders(self.data)
        return self._occupant(found, Place(_quota(technique, row)), holders, left, name)

    def _occupant(self, found, where: Place, holders, left, tenant="") -> Occupant:
        shape, start, instance = where
        place = "%s-gpu%d%s" % (self.host, self.gpu.index, "-%s-%d" % (shape.profile, start) if instance else "")
        name = tenant or _unit(holders) or _clean(place)
        wish = wish_of(self.wishes, (name, *sorted(_origins(holders)), place))
        if found is None:
            found = _unseen(self.host, self.gpu, instance, tenant)
        wide = sorted({who for row in holders for who in _who(row)} & self.spread) if not tenant else []
        if wide:
            left = left or "%s holds several GPUs or instances, which belong together" % wide[0]
        configured = wish.memory_bytes is not None and wish.sm_percent is not None
        if wish.leave:
            left = left or "excluded in the inventory (%s)" % wish.where
        elif self._may_be_left(holders):
            left = left or "the name of its container is unknown, and the inventory excludes some"
        elif found.verdict.word in _BLIND and not (found.verdict.word == "no_data" and (configured or wish.profile)):
            left = left or "%s (%s)" % (_BLIND[found.verdict.word], found.verdict.reason.rstrip("."))
        elif not (tenant or configured or wish.profile):
            left = left or self._new(found, holders)
        return Occupant(
            name, (self.host, self.gpu.index), self.gpu.uuid, shape, start, found, wish, instance, tuple(holders), left
        )

    def _may_be_left(self, holders: Sequence[Mapping[str, Any]]) -> bool:
        return any(wish.leave for wish in self.wishes) and any(map(_unnamed, _origins(holders)))

    def _new(self, found: Finding, holders: Sequence[Mapping[str, Any]]) -> str:
        """Return why the history does not belong to the current holder, or "".

        Both the host's start time and the server's holding time must be old enough.
        """
        began = min((row["started_seconds"] for row in holders if row.get("started_seconds") is not None), default=None)
        held = found.holding.held_seconds
        if (began is None or began <= self.since) and (held is None or held >= self.least_seconds):
            return ""
        return "it runs for less than %.0f h, and earlier history belongs to others" % (self.least_seconds / 3600)


def _is_tenant(found: Finding) -> bool:
    return found.holding.subject.kind == "tenant"


def _quota(technique: FleetTechnique, row: Mapping[str, Any]) -> Shape:
    return share(technique.key, *technique.quota(row))


def _unseen(host: str, gpu: Gpu, instance: str, tenant: str) -> Finding:
    kind = "tenant" if tenant else "mig_instance" if instance else "gpu"
    subject = Subject(kind, host, gpu.uuid, str(gpu.index), gpu.name, mig_instance=instance, name=tenant)
    return Finding("", Verdict("no_data", "The audit has no data."), Holding(subject))


def _who(row: Mapping[str, Any]) -> list[str]:
    """Return a holder's names: unit, container, job, user and process.

    Holders on two GPUs are one workload if they share a name.
    """
    found = [str(row["unit_or_container"])] if row.get("unit_or_container") else []
    found += ["job %s" % row["job"]] if row.get("job") else []
    # Processes that were started by hand, such as a training's ranks, share only their user.
    found += ["user %s" % row["user"]] if row.get("user") and not found else []
    return found + (["pid %s" % row["pid"]] if row.get("pid") else [])


def _spread(state: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of holders that use several GPUs or instances.

    Such holders must keep whole GPUs, because a process can use at most one MIG device.
    """
    places: dict[str, set[tuple[str, Any]]] = defaultdict(set)
    for gpu in state["gpus"]:
        in_mig = bool((gpu.get("mig") or {}).get("instances"))
        for row in _holders(gpu):
            for who in _who(row):
                places[who].add((str(gpu["uuid"]), row.get("gpu_instance_id") if in_mig else None))
    return frozenset(who for who, found in places.items() if len(found) > 1)


def _holders(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return using([one for one in row.get("holders") or () if not one.get("watches")])


def _origins(holders: Sequence[Mapping[str, Any]]) -> set[str]:
    return {str(row["unit_or_container"]) for row in holders if row.get("unit_or_container")}


def _unnamed(origin: str) -> bool:
    """Return whether the text has a container's ID instead of its name."""
    _runtime, container, name = origin.rpartition("container ")
    return bool(container and UNNAMED.fullmatch(name))


def _unit(holders: Sequence[Mapping[str, Any]]) -> str:
    """Return a unit's or container's name if it is permanent, or "".

    Names of jobs, sessions and scopes are not permanent.
    """
    origins = _origins(holders)
    if len(origins) != 1 or any(row.get("job") for row in holders):
        return ""
    (origin,) = origins
    if re.match(r"(user@|session-)|.*\.scope$", origin) or _unnamed(origin):
        return ""
    return _clean(re.sub(r"\.service$", "", origin.rpartition(" ")[2]))


def _clean(text: str) -> str:
    """Convert the text to a valid tenant name (docs/gpu_layout.md)."""
    return re.sub(r"^[^A-Za-z0-9]+|[^A-Za-z0-9_.-]", "", re.sub(r"[@ /:]+", "-", text))[:63]


def _named(gpus: Sequence[GpuToday]) -> tuple[GpuToday, ...]:
    """Make workloads' names unique, because a unit may run on many hosts."""
    counts = Counter(one.name for gpu in gpus for one in gpu.occupants)
    taken = {name for name, count in counts.items() if count == 1}
    made = []
    for gpu in gpus:
        occupants = []
        for one in gpu.occupants:
            name = one.name
            if counts[name] > 1 and not one.shape.is_tenant:
                end = "-%s-gpu%d%s" % (gpu.host, gpu.gpu.index, "-%d" % one.start if one.start is not None else "")
                name = _clean(name[: max(1, 63 - len(end))] + end)
            elif counts[name] > 1:
                # Tenant names are unique only on a host. The host at the end of the name also binds the tenant to the
                # host.
                name = "%s@%s" % (name, gpu.host)
            number = 2
            while name in taken and name != one.name:
                name, number = "%s-%d" % (name[:60], number), number + 1
            taken.add(name)
            occupants.append(dataclasses.replace(one, name=name))
        made.append(dataclasses.replace(gpu, occupants=tuple(occupants)))
    return tuple(made)
