# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make a proposal from a request. This module is the package's entry point."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Callable, Collection, Mapping, NamedTuple, Sequence

from ...module_utils.model import Gpu
from ...module_utils.plan.gpu_plan import gpu_line
from ..audit.ledger import HOURS_PER_MONTH
from ..audit.make import Order
from ..audit.make import make as make_audit
from ..audit.model import Audit
from ..audit.prometheus import Prometheus, PrometheusError
from ..counted import counted
from ..numerics import require
from ..packing import exact
from ..packing.model import Shape, Standing
from ..sizing.demand import fleet_margin
from ..sizing.margin import Margin
from ..sizing.model import Fleet, Policy
from .after import after
from .colocations import colocations
from .larger import remedy
from .mode import decide, shrink
from .model import Colocation, Decision, GpuToday, HostChange, LeasePool, Need, Occupant, Outcome, Proposal, Wish
from .observed import hosts_today
from .overlay import merged, planned
from .pools import pools
from .rearrange import Arrangement, Limits, rearrange, smaller
from .reclaim import Bounds, reclaimable
from .risk import risk
from .series import fleet_of, histories, need_of_tenant, needs, with_wish
from .steps import steps
from .teams import teams
from .today import fleet_today

#: Verdicts of workloads that have more than they need, whose histories are read.
_CANDIDATES = ("idle", "oversized_memory", "oversized_compute")


@dataclass(frozen=True)
class Request:
    """The inputs of a proposal.

    `states` (results of gpu_info), `layouts` (values of `gpu_layout`) and `wishes` are mappings by host name.
    """

    audit: Order
    states: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    layouts: Mapping[str, Any] = field(default_factory=dict)
    wishes: Mapping[str, Sequence[Wish]] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    policy: Policy = field(default_factory=Policy)
    #: The inputs of a proposal.
    #:
    #: `states` (results of gpu_info), `layouts` (values of `gpu_layout`) and `wishes` are by host name.
    most_candidates: int = 1000
    reclaim_grace_seconds: float | None = None
    reclaim_exempt: Sequence[str] = ()
    reclaim_standby: Sequence[str] = ()
    reclaim_jobs: str = "spare"


def make(request: Request, now_seconds: float, say: Callable[[str], None] = lambda line: None) -> Proposal:
    """Return the proposal.

    Raises FleetError if there is no data at all, or if a setting in the inventory is impossible.
    """
    require()
    audit = make_audit(request.audit, now_seconds, say)
    notes = [*audit.sources.missing, *(audit.usage.advice if audit.usage else ())]
    hosts = hosts_today(request.states, request.layouts)
    gpus = fleet_today(
        audit,
        hosts,
        request.wishes,
        request.audit.prices,
        request.audit.thresholds.least_history_hours * 3600,
    )
    by_key = {gpu.key: gpu for gpu in gpus}
    found, fleet, margin = _needs(request, audit, gpus, by_key, notes, say)
    decisions, stays = _decisions(gpus, found)
    together = teams(fleet, gpus, decisions, request.limits.reach, request.policy)
    for name, why in together.stays.items():
        stays[name] = why
        del decisions[name]
    for name, why in together.reasons.items():
        decisions[name] = dataclasses.replace(decisions[name], reason="%s %s" % (decisions[name].reason, why))

    def change(arrangement: Arrangement, name: str) -> tuple[list[dict[str, Any]], bool, Any, list[str]]:
        entries, changed = arrangement.entries(name)
        layout, host = merged(hosts[name], entries, changed), hosts[name].host
        return (layout, bool(changed), *planned(layout, host.gpus, host.driver_version))

    def check(arrangement: Arrangement, names: Collection[str]) -> None:
        for name in names:
            change(arrangement, name)

    arrangement = rearrange(gpus, decisions, request.limits, check, say, together.members)
    notes += arrangement.notes
    lease_pools = _lease_pools(request, audit, notes)
    colocated = _colocations(request, audit, gpus, notes)
    then = arrangement.standing()
    limited = (request.limits.most_moved, request.limits.most_destroyed) != (None, None)
    outcomes = tuple(
        _outcome(
            one, gpu, then.get(one.name), Judged(decisions.get(one.name), found.get(one.name), stays, limited), by_key
        )
        for gpu in gpus
        for one in gpu.occupants
    )
    used_then = _used_then(gpus, then)
    changed = {gpu.key for gpu in gpus for one in gpu.occupants if _moves(one, then)}
    changed |= {each.key for gpu in gpus for one in gpu.occupants if _moves(one, then) for each in then[one.name]}
    occupants = {one.name: one for gpu in gpus for one in gpu.occupants}
    outcomes = tuple(
        _with_remedy(outcome, remedy(occupants[outcome.name], by_key[occupants[outcome.name].key], gpus, used_then))
        for outcome in outcomes
    )
    changes = tuple(
        _host_change(name, change(arrangement, name), [g for g in gpus if g.host == name], used_then, then)
        for name in sorted(arrangement.hosts())
    )
    return Proposal(
        made_at_seconds=now_seconds,
        window=audit.window,
        prometheus=audit.sources.prometheus,
        hosts=changes,
        workloads=outcomes,
        reclaim=reclaimable(
            audit,
            request.states,
            Bounds(
                request.reclaim_grace_seconds,
                tuple(request.reclaim_exempt),
                tuple(request.reclaim_standby),
                request.reclaim_jobs,
            ),
        ),
        gpus=len(gpus),
        used_today=sum(gpu.used for gpu in gpus),
        used_then=len(used_then),
        saved_per_month=_saved(gpus, used_then),
        currency=audit.currency,
        moved=sum(outcome.change in ("moved", "resized") for outcome in outcomes),
        destroyed=sum(change.destroyed for change in changes),
        notes=tuple(dict.fromkeys(notes)),
        steps=steps(changes, outcomes, occupants),
        ledger_today=audit.ledger.by_class(),
        ledger_then=after(audit.ledger, gpus, then, changed).by_class(),
        promise=" ".join(filter(None, (margin.promise, together.promise))) if margin and arrangement.answers else "",
        settings=_settings(request),
        lease_pools=lease_pools,
        colocations=colocated,
    )


def _lease_pools(request: Request, audit: Audit, notes: list[str]) -> tuple[LeasePool, ...]:
    """Return a proposal for each entry with leases."""
    if request.audit.access is None:
        return ()
    try:
        found, noticed = pools(Prometheus(request.audit.access), audit.window, request.audit.selector, request.policy)
    except PrometheusError as error:
        notes.append("%s The use of leases is unknown." % error)
        return ()
    notes += noticed
    return found


def _colocations(request: Request, audit: Audit, gpus: Sequence[GpuToday], notes: list[str]) -> tuple[Colocation, ...]:
    """Return which offline workloads could use the GPUs of online workloads."""
    if request.audit.access is None:
        return ()
    try:
        found, noticed = colocations(
            Prometheus(request.audit.access),
            gpus,
            audit.window,
            request.audit.selector,
            request.limits.reach,
            request.policy,
        )
    except PrometheusError as error:
        notes.append("%s Colocation was not considered." % error)
        return ()
    notes += noticed
    return found


def _needs(
    request: Request,
    audit: Audit,
    gpus: Sequence[GpuToday],
    by_key: Mapping[tuple[str, int], GpuToday],
    notes: list[str],
    say: Callable[[str], None],
) -> tuple[dict[str, Need | str], Fleet | None, Margin | None]:
    """Return (needs by workload, histories, margin) for workloads that may change.

    For an unknown need, there is the reason instead.
    """
    fleet, margin = None, None
    included = [one for gpu in gpus if not gpu.left for one in gpu.occupants]
    wanted = [one for one in included if one.finding.verdict.word in _CANDIDATES or one.wish.forces]
    found: dict[str, Need | str] = {}
    asked = [one for one in wanted if not one.shape.is_tenant]
    asked.sort(key=lambda one: (-(one.finding.verdict.waste_per_month or 0.0), one.name))
    for one in asked[request.most_candidates :]:
        found[one.name] = "its history was not read: %s more waste" % counted(
            request.most_candidates, "workload has", "workloads have"
        )
    asked = asked[: request.most_candidates]
    if asked and request.audit.access is not None:
        server = Prometheus(request.audit.access)
        try:
            read, grid, noticed = histories(server, asked, audit.window, request.audit.selector, say)
        except PrometheusError as error:
            notes.append("%s Needs of workloads are unknown." % error)
        else:
            notes += noticed
            say("%s, %s" % (counted(server.queries, "query", "queries"), counted(server.bytes_received, "byte")))
            cards = {one.name: one.finding.holding.memory_total_bytes for one in asked}
            known = {name: total for name, total in cards.items() if total}
            fleet = fleet_of(asked, read, grid, known)
            margin = fleet_margin(fleet, request.policy)
            found.update(needs(fleet, asked, by_key, request.policy))
    for one in wanted:
        if one.shape.is_tenant:
            found[one.name] = need_of_tenant(one, request.policy, margin.ratio if margin else None)
        need = with_wish(found.get(one.name), one)
        found[one.name] = "its history is unknown" if need is None else need
    return found, fleet, margin


def _decisions(gpus: Sequence[GpuToday], found: Mapping[str, Need | str]) -> tuple[dict[str, Decision], dict[str, str]]:
    """Return (decision by workload, reason by workload for those that stay)."""
    decisions, stays = {}, {}
    for gpu in gpus:
        for one in gpu.occupants:
            need = found.get(one.name)
            if one.left:
                stays[one.name] = one.left
            elif need is None:
                stays[one.name] = one.finding.verdict.reason
            elif isinstance(need, str) and not (one.wish.profile or one.wish.mode == "exclusive"):
                stays[one.name] = need
            elif one.shape.is_tenant and not one.wish.forces and isinstance(need, Need):
                decisions[one.name] = shrink(one.shape.kind, need, gpu.model)
            else:
                decisions[one.name] = decide(one.wish, need if isinstance(need, Need) else None, gpu.model)
    return decisions, stays


class Judged(NamedTuple):
    """The decision about a workload, and its need.

    `stays` has the reason for each workload that does not change. `limited` is true if the number of moved workloads or
    destroyed instances is limited.
    """

    decision: Decision | None
    need: Need | str | None
    stays: Mapping[str, str]
    limited: bool


def _outcome(
    one: Occupant,
    gpu: GpuToday,
    then: Sequence[Standing] | None,
    judged: Judged,
    by_key: Mapping[tuple[str, int], GpuToday],
) -> Outcome:
    decision = judged.decision
    known = judged.need if isinstance(judged.need, Need) else None
    stays_as = Outcome(
        name=one.name,
        host=gpu.host,
        gpu_index=gpu.gpu.index,
        verdict=one.finding.verdict.word,
        today=_shown(one.shape, one.start),
        change="left" if one.left else "stays",
        mode=_mode(one.shape.kind),
        reason=judged.stays.get(one.name, ""),
        then_host=gpu.host,
        then_gpu_index=gpu.gpu.index,
        then=_shown(one.shape, one.start),
        need=known,
    )
    place = then[0] if then else None
    if place is None or (place.key, place.shape, place.start) == (one.key, one.shape, one.start):
        if decision and not stays_as.reason:
            why = why_unchanged(one, decision, gpu.model, exact.MISSING, judged.limited)
            return dataclasses.replace(stays_as, reason=why)
        return stays_as
    word, why = risk(one, place.shape, by_key[place.key].model, known, place.host)
    if decision and place.shape == decision.shape:
        reason = decision.reason
    else:
        reason = "It keeps its size, and moves to free a GPU."
    return dataclasses.replace(
        stays_as,
        change="resized" if place.key == one.key else "moved",
        mode=_mode(place.shape.kind),
        reason=reason,
        then_host=place.host,
        then_gpu_index=place.index,
        then=_shown(place.shape, place.start),
        risk=word,
        risks=why,
    )


def why_unchanged(
    one: Occupant, decision: Decision, model: str, solver_missing: str = "", limited: bool = False
) -> str:
    """Return why a workload does not change, although it could.

    `solver_missing` is the reason why OR-Tools is unavailable, or "". `limited` is true if the number of moved
    workloads or destroyed instances is limited.
    """
    if decision.shape == one.shape:
        return decision.reason
    could = _shown(decision.shape, None)
    if decision.shape.kind == one.shape.kind and not smaller(decision, one, model):
        return "It needs %s, more than it has, and right-sizing never increases an allocation. %s" % (
            could,
            decision.reason,
        )
    if solver_missing:
        # The heuristic does not try all plans, and may have missed a better one.
        why = "but the best plan found does not change it. OR-Tools is missing: run `pip install ortools` to get the optimum."
    else:
        why = "but that frees no GPU%s." % (" within the limits of changes" if limited else "")
    return "It could be %s, %s %s" % (could, why, decision.reason)


def _moves(one: Occupant, then: Mapping[str, Sequence[Standing]]) -> bool:
    """Return whether the place or the share of a workload changes."""
    place = then[one.name][0] if then.get(one.name) else None
    return place is not None and (place.key, place.shape, place.start) != (one.key, one.shape, one.start)


def _with_remedy(outcome: Outcome, text: str) -> Outcome:
    """Return the outcome, with a remedy for a saturated workload that does not change."""
    if not text or outcome.change in ("moved", "resized"):
        return outcome
    return dataclasses.replace(outcome, reason=("%s %s" % (outcome.reason, text)).strip())


def _mode(kind: str) -> str:
    return "exclusive" if kind == "whole" else kind


def _shown(shape: Shape, start: int | None) -> str:
    if shape.technique and shape.technique.part_text:
        return shape.technique.part_text
    return "%s%s" % (shape, "" if start is None else " at %d" % start)


def _used_then(gpus: Sequence[GpuToday], then: Mapping[str, Sequence[Standing]]) -> set[tuple[str, int]]:
    used = set()
    for gpu in gpus:
        for one in gpu.occupants:
            used |= {each.key for each in then[one.name]} if one.name in then else {gpu.key}
    return used


def _saved(gpus: Sequence[GpuToday], used_then: set[tuple[str, int]]) -> float | None:
    """Return the freed GPUs' monthly price minus that of newly used GPUs.

    Returns None if no price is known.
    """
    changed = [gpu for gpu in gpus if gpu.used != (gpu.key in used_then)]
    known = [(gpu.price_per_hour, 1 if gpu.used else -1) for gpu in changed if gpu.price_per_hour is not None]
    # Round each GPU as in the ledger, so that hosts add up to the fleet.
    return float(sum(sign * round(price * HOURS_PER_MONTH) for price, sign in known)) if known else None


def _host_change(
    name: str,
    change,
    gpus: Sequence[GpuToday],
    used_then: set[tuple[str, int]],
    then: Mapping[str, Sequence[Standing]],
) -> HostChange:
    layout, changes_layout, plan, beside = change
    freed = tuple(gpu.gpu.index for gpu in gpus if gpu.used and gpu.key not in used_then)
    left = sum(one.shape.kind == "mig" and _moves(one, then) for gpu in gpus for one in gpu.occupants)
    known: dict[int, Gpu] = {gpu.gpu.index: gpu.gpu for gpu in gpus}
    counts = plan.counts()
    return HostChange(
        host=name,
        layout=tuple(layout),
        changes_layout=changes_layout,
        before=tuple(gpu_line(gpu.gpu, gpu.before()) for gpu in plan.gpus if gpu.gpu.index in known),
        after=tuple(gpu_line(gpu.gpu, gpu.after()) for gpu in plan.gpus if gpu.gpu.index in known),
        plan=(*plan.lines(), *beside),
        created=counts["create"],
        destroyed=counts["destroy"],
        kept=counts["keep"],
        disturbs=tuple(found.to_data() for found in plan.disturbs),
        freed_gpus=freed,
        saved_per_month=_saved(gpus, used_then),
        destroyed_in_use=min(left, counts["destroy"]),
        taken_gpus=tuple(gpu.gpu.index for gpu in gpus if not gpu.used and gpu.key in used_then),
    )


def _settings(request: Request) -> dict[str, Any]:
    limits = dataclasses.asdict(request.limits)
    return {
        "limits": limits,
        "policy": dataclasses.asdict(request.policy),
        "workloads": {
            host: [dataclasses.asdict(wish) for wish in wishes] for host, wishes in request.wishes.items() if wishes
        },
        "most_candidates": request.most_candidates,
        "reclaim_grace_hours": None if request.reclaim_grace_seconds is None else request.reclaim_grace_seconds / 3600,
        "reclaim_exempt": list(request.reclaim_exempt),
        "reclaim_standby": list(request.reclaim_standby),
        "reclaim_jobs": request.reclaim_jobs,
        "thresholds": dataclasses.asdict(request.audit.thresholds),
        "prices": [dataclasses.asdict(price) for price in request.audit.prices],
    }
