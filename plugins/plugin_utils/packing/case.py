# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check a problem and prepare it for both solvers. Pure."""

from __future__ import annotations

import dataclasses
import difflib
from collections import Counter, defaultdict
from typing import Iterable, Sequence

from .geometry import MUST, Geometry, Item, geometry
from .model import (
    AIMS,
    DOMAINS,
    KINDS,
    POLICIES,
    SHARES,
    FleetGpu,
    PackingError,
    Problem,
    Shape,
    Standing,
    Workload,
)

#: Name of each kind of domain in messages.
DOMAIN_NAMES = {"host": "host", "numa": "NUMA node", "link": "NVLink group"}


class Case:
    """A checked problem.

    `home`: current places of each workload that can stay, with one Standing per GPU. `on`: current content of each GPU.
    `domains`: GPUs by kind of domain and by domain. Raises PackingError if the problem is contradictory.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem, self.rules = problem, problem.rules
        _check_rules(problem)
        self.gpus: dict[tuple[str, int], FleetGpu] = _unique(problem.gpus, lambda gpu: gpu.key, lambda gpu: gpu.label)
        self.workloads: dict[str, Workload] = _unique(
            problem.workloads, lambda w: w.name, lambda w: "workload %s" % w.name
        )
        for workload in problem.workloads:
            _check_workload(workload)
        headroom = (self.rules.headroom_memory_percent, self.rules.headroom_sm_percent)
        self._geometry = {model: geometry(model, *headroom) for model in {gpu.model for gpu in problem.gpus}}
        self.on: dict[tuple[str, int], list[Standing]] = defaultdict(list)
        for standing in problem.today:
            self._check_standing(standing)
            self.on[standing.key].append(standing)
        for key, content in self.on.items():
            self._check_gpu(self.gpus[key], content)
        self.home = self._homes()
        self.domains: dict[str, dict[tuple, list[FleetGpu]]] = {within: defaultdict(list) for within in DOMAINS}
        for gpu in problem.gpus:
            for within in DOMAINS:
                self.domains[within][gpu.domain(within)].append(gpu)
        self._why_not: dict[tuple[Workload, frozenset], str] = {}
        self.most_of_model = Counter(gpu.model for gpu in problem.gpus)
        for model, count in self.rules.reserve_gpus.items():
            self.most_of_model[model] -= count

    def geometry(self, gpu: FleetGpu) -> Geometry:
        return self._geometry[gpu.model]

    def models(self) -> list[str]:
        return sorted(self._geometry)

    def geometry_of(self, model: str) -> Geometry:
        return self._geometry[model]

    def allowed(self, workload: Workload, gpu: FleetGpu) -> bool:
        return workload.hosts is None or gpu.host in workload.hosts

    def at_home(self, workload: str, key: tuple[str, int]) -> Standing | None:
        """Return the workload's current place on this GPU.

        Returns None if it has no place there, or cannot stay.
        """
        return next((s for s in self.home.get(workload, ()) if s.key == key), None)

    def cost(self, gpu: FleetGpu) -> int:
        return gpu.cost if self.rules.aim == "cost" else 0

    def why_not(self, workload: Workload, occupied: frozenset[tuple[str, int]]) -> str:
        """Return why a workload was not placed, and the fix.

        `occupied` has the keys of the GPUs that the result uses.
        """
        like = (dataclasses.replace(workload, name="", weight=None), occupied)
        if like not in self._why_not:
            self._why_not[like] = self._reason(*like)
        return self._why_not[like]

    def _reason(self, workload: Workload, occupied: frozenset[tuple[str, int]]) -> str:
        wanted = " or ".join(map(str, workload.options))
        able = [g for g in self.problem.gpus if any(self.geometry(g).can_hold(option) for option in workload.options)]
        if not able:
            return "no GPU of the fleet (%s) can hold %s. Choose another shape." % (
                ", ".join(self.models()) or "empty",
                wanted,
            )
        here = [gpu for gpu in able if self.allowed(workload, gpu)]
        if not here:
            return "none of its allowed hosts (%s) has a GPU that can hold %s. Allow another host." % (
                ", ".join(sorted(workload.hosts or ())),
                wanted,
            )
        widest = max(Counter(gpu.domain(workload.within) for gpu in here).values())
        if widest < workload.gpus:
            return "it needs %d GPUs within one %s, which has at most %d. Reduce the GPUs, or widen `within`." % (
                workload.gpus,
                DOMAIN_NAMES[workload.within],
                widest,
            )
        return self._no_room(workload, here, wanted, occupied)

    def _no_room(self, workload: Workload, here: Sequence[FleetGpu], wanted: str, occupied: frozenset) -> str:
        """Return why no GPU that can hold the workload has room for it."""
        empty = Counter(gpu.model for gpu in here if gpu.key not in occupied)
        spare = Counter(gpu.model for gpu in self.problem.gpus if gpu.key not in occupied)
        reserved = sum(min(count, spare[model], empty[model]) for model, count in self.rules.reserve_gpus.items())
        free = sum(empty.values()) - reserved
        ties = ["%s %s" % (word, name) for word, name in (("near", workload.near), ("apart", workload.apart)) if name]
        tied = " (%s)" % " and ".join(ties) if ties else ""
        are = "is" if reserved == 1 else "are"
        kept = ", and %d of the empty ones %s reserved" % (reserved, are) if reserved else ""
        limited = (self.rules.most_moved, self.rules.most_destroyed) != (None, None)
        if free <= 0:
            return "no room for %s is left on the %d GPUs that can hold it%s%s. Add GPUs, or reduce the demand%s." % (
                wanted,
                len(here),
                tied,
                kept,
                ", or raise most_moved or most_destroyed" if limited else "",
            )
        place = "%d of the %d GPUs that can hold %s %s empty%s, but " % (
            free,
            len(here),
            wanted,
            "is" if free == 1 else "are",
            kept,
        )
        if limited:
            return place + "the search found no result within most_moved and most_destroyed. Raise these limits."
        if ties:
            more = "larger hosts" if workload.near else "hosts" if workload.apart_on == "host" else "GPUs"
            return place + "not together with the workloads that it is %s. Loosen this rule, or add %s." % (
                " and ".join(ties),
                more,
            )
        if workload.gpus > 1:
            return place + "no %s has %d of them. Reduce the GPUs, or widen `within`." % (
                DOMAIN_NAMES[workload.within],
                workload.gpus,
            )
        return place + "the search ended before it found this place. Raise `seconds`."

    def _homes(self) -> dict[str, tuple[Standing, ...]]:
        current: dict[str, list[Standing]] = defaultdict(list)
        for standing in self.problem.today:
            if standing.workload in self.workloads:
                current[standing.workload].append(standing)
        return {name: tuple(homes) for name, homes in current.items() if self._can_stay(self.workloads[name], homes)}

    def _can_stay(self, workload: Workload, homes: Sequence[Standing]) -> bool:
        """Return whether a workload's current places meet its demand.

        If not, it must be recreated in any case, which does not count as a move.
        """
        gpus = [self.gpus[standing.key] for standing in homes]
        return (
            len(homes) == workload.gpus
            and len({standing.shape for standing in homes}) == 1
            and homes[0].shape in workload.options
            and len({gpu.domain(workload.within) for gpu in gpus}) == 1
            and all(self.allowed(workload, gpu) and self.geometry(gpu).can_hold(homes[0].shape) for gpu in gpus)
        )

    def _check_standing(self, standing: Standing) -> None:
        if standing.key not in self.gpus:
            raise PackingError(
                "%s gpu %d" % standing.key,
                "the current layout has %s on it, but the fleet has no such GPU" % _with_workload(standing),
                "Add the GPU to the fleet, or remove it from the current layout.",
            )

    def _check_gpu(self, gpu: FleetGpu, content: Sequence[Standing]) -> None:
        """Raise PackingError if the current content does not fit on the GPU."""
        plain = geometry(gpu.model)
        items: tuple[Item, ...] = tuple((s.shape, s.start, MUST) for s in content)
        pattern = tuple(sorted(shape for shape, _start, _must in items))
        names = ", ".join(map(_with_workload, content))
        doubled = [name for name, count in Counter(s.workload for s in content if s.workload).items() if count > 1]
        if doubled:
            problem = "the current layout lists %s twice on it" % doubled[0]
        elif not plain.fits(pattern):
            problem = "the current layout has more on it than fits: %s" % names
        elif plain.settle(items, pattern) is None:
            problem = "instances of the current layout overlap or have impossible starts: %s" % names
        else:
            return
        raise PackingError(
            gpu.label, problem, "Read the host's GPUs again (openfleet.gpu.gpu_info) and correct the list."
        )


def _with_workload(standing: Standing) -> str:
    at = "" if standing.start is None else "@%d" % standing.start
    return "%s%s (%s)" % (standing.shape, at, standing.workload or "free")


def _unique(things: Iterable, key, label) -> dict:
    by_key: dict = {}
    for thing in things:
        if key(thing) in by_key:
            raise PackingError(label(thing), "it is listed twice", "List it once.")
        by_key[key(thing)] = thing
    return by_key


def _one_of(where: str, what: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        near = difflib.get_close_matches(str(value), known, 1)
        hint = "Did you mean %s? " % near[0] if near else ""
        raise PackingError(where, "%s is %r" % (what, value), "%sIt is one of %s." % (hint, ", ".join(known)))


def _check_workload(workload: Workload) -> None:
    where = "workload %s" % workload.name
    if not workload.options:
        raise PackingError(where, "it has no options", "Name at least one shape that it can take.")
    if workload.gpus < 1:
        raise PackingError(where, "it asks for %d GPUs" % workload.gpus, "Ask for 1 or more.")
    if workload.counts < 1:
        raise PackingError(where, "its weight is %d" % workload.counts, "Give it 1 or more.")
    _one_of(where, "within", workload.within, DOMAINS)
    _one_of(where, "apart_on", workload.apart_on, ("gpu", "host"))
    for shape in workload.options:
        _one_of(where, "the kind of an option", shape.kind, KINDS)
        if shape.kind in SHARES and (shape.memory_mib < 0 or not 0 <= shape.sm_percent <= 100):
            raise PackingError(
                where, "an option asks for %s" % shape, "Ask for 0 MiB or more, and for 0 to 100 % of the SMs."
            )
        if shape.technique and shape.technique.one_gpu and workload.gpus > 1:
            raise PackingError(
                where,
                "it asks for %d GPUs with %s, but %s" % (workload.gpus, shape.kind, shape.technique.one_gpu),
                "Ask for one GPU, or for another kind of sharing.",
            )
        if shape.kind == "mig" and not shape.profile:
            raise PackingError(where, "an option is a MIG instance without a profile", "Name a profile, e.g. 3g.40gb.")


def _check_rules(problem: Problem) -> None:
    rules = problem.rules
    _one_of("rules", "policy", rules.policy, POLICIES)
    _one_of("rules", "aim", rules.aim, AIMS)
    for name in ("headroom_memory_percent", "headroom_sm_percent"):
        if not 0 <= getattr(rules, name) < 100:
            raise PackingError("rules", "%s is %s" % (name, getattr(rules, name)), "Give 0 to 99.")
    for name in ("most_moved", "most_destroyed"):
        if (getattr(rules, name) or 0) < 0:
            raise PackingError("rules", "%s is %d" % (name, getattr(rules, name)), "Give 0 or more.")
    for gpu in problem.gpus:
        if gpu.cost < 0:
            raise PackingError(gpu.label, "its cost is %d" % gpu.cost, "Give 0 or more.")
    have = Counter(gpu.model for gpu in problem.gpus)
    for model, count in rules.reserve_gpus.items():
        if not 0 <= count <= have[model]:
            raise PackingError(
                "rules",
                "reserve_gpus asks for %d %s, but the fleet has %d" % (count, model, have[model]),
                "Reserve at most that many.",
            )


def shapes_wanted(case: Case) -> dict[Shape, int]:
    """Return how many of each shape all workloads together could need at most."""
    counts: Counter[Shape] = Counter()
    for workload in case.problem.workloads:
        for shape in set(workload.options):
            counts[shape] += workload.gpus
    return dict(counts)
