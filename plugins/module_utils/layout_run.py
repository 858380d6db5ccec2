# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run looks at and plans: the GPUs with their holders and settings, the MPS daemons, the tenants."""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping, Sequence

from . import mig_plan, mps_plan, plan_file, vgpu_plan
from .errors import PlanError
from .holders import find_holders
from .holders_mark import mark
from .layout_types import Layout
from .mig_steps import GpuPlan, Plan, Target
from .model import Gpu, Holder, Host
from .mps_host import MpsHost, adjustable
from .mps_model import MpsSeen
from .nvml import Session
from .ownership import Ownership
from .selector import targets
from .techniques.registry import TECHNIQUES
from .vgpu_host import VgpuHost
from .vgpu_model import MPS as TENANTS_BY_MPS
from .vgpu_model import VgpuSeen

#: The parts of a layout that a run may be about: MIG and compute modes, the MPS daemons, the tenants.
GPUS, MPS, VGPU = "gpus", "mps", "vgpu"
#: These, and what each technique sets on GPUs.
ALL_PARTS = (GPUS, *(technique.key for technique in TECHNIQUES), MPS, VGPU)
#: Instead of MPS or VGPU: every daemon or tenant of this collection goes, whatever the layout says.
NO_MPS, NO_VGPU = "no_mps", "no_vgpu"


@dataclasses.dataclass(frozen=True)
class Beside:
    """What a host has beside its GPUs, and what is seen of it. A part is None where this run is not about it, or cannot be."""

    daemons: MpsHost | None = None
    daemons_seen: tuple[MpsSeen, ...] = ()
    tenants: VgpuHost | None = None
    tenants_seen: tuple[VgpuSeen, ...] = ()


def observe(session: Session, own: Sequence[MpsSeen] = (), clients: bool = False) -> Host:
    """The host, with everybody who holds one of its GPUs or instances, but for what `own` daemons are there with.

    These hold nothing against the collection that runs them: their `clients` do, and are counted where a daemon stops, or
    here where that is asked.
    """
    host = session.observe()
    pids = mps_plan.serves(own, clients=not clients)
    holders = [h for h in find_holders(host) if h.pid not in pids.get(h.gpu_uuid, ())]
    if pids:
        host = dataclasses.replace(
            host, gpus=tuple(_without(gpu, pids.get(gpu.uuid, frozenset())) for gpu in host.gpus)
        )
    return mark(host, holders)


def staying(plan: Plan) -> tuple[MpsSeen, ...]:
    """The daemons that the plan leaves running."""
    return (*plan.mps.kept, *(step.seen for step in plan.mps.adjusts))


def make_plan(
    layout: Layout,
    host: Host,
    ownership: Ownership,
    saved: Mapping[str, Any] | None,
    parts: Sequence[str],
    beside: Beside,
    library_comes: bool = False,
) -> Plan:
    """The plan of these parts of the layout, or the one that was saved.

    With `library_comes` it is no error that tenants lack the library that holds them to their quotas. Raises SelectorError
    and PlanError before anything has changed.
    """
    wanted = tuple(_of_parts(target, host, parts) for target in targets(layout, host.gpus))
    if saved is None:
        plan = mig_plan.plan(host.gpus, wanted, ownership)
    else:
        plan = plan_file.restore(saved, host, wanted, ownership)
    if GPUS not in parts:
        # A MIG mode that is pending there is not this run's business either.
        plan = dataclasses.replace(plan, gpus=tuple(_of_settings_only(gpu) for gpu in plan.gpus))
    plan = _with_daemons(plan, layout, host, parts, beside.daemons, beside.daemons_seen)
    plan = _with_tenants(plan, layout, host, parts, beside, library_comes)
    if saved is not None:
        plan_file.check_beside(saved, plan)
    return plan


def _with_daemons(
    plan: Plan,
    layout: Layout,
    host: Host,
    parts: Sequence[str],
    daemons: MpsHost | None,
    seen: Sequence[MpsSeen],
) -> Plan:
    if NO_MPS in parts:
        return dataclasses.replace(plan, mps=mps_plan.plan((), seen, plan, host, adjustable, leave_others=False))
    if MPS not in parts:
        return plan
    asked = mps_plan.wanted(layout, plan, host.driver_version, seen)
    if asked:
        _check_daemons(asked[0].where, daemons)
    if GPUS not in parts:
        _check_gpus(asked, host)
    return dataclasses.replace(plan, mps=mps_plan.plan(asked, seen, plan, host, adjustable))


def _with_tenants(
    plan: Plan, layout: Layout, host: Host, parts: Sequence[str], beside: Beside, library_comes: bool
) -> Plan:
    tenants, seen = beside.tenants, beside.tenants_seen
    if not {VGPU, NO_VGPU}.intersection(parts):
        return plan
    asked: tuple[vgpu_plan.WantedTenant, ...] = ()
    if VGPU in parts:
        asked = vgpu_plan.wanted(layout, plan, seen, frozenset() if tenants is None else tenants.dmem)
    if asked:
        _check_tenants(asked, tenants, library_comes)
    if GPUS not in parts:
        _check_gpus_of_tenants(asked, host)
        _check_daemons_of_tenants(asked, parts)

    def processes(name: str, gpu_uuid: str) -> Sequence[Holder]:
        return () if tenants is None else tenants.processes(host, name, gpu_uuid)

    leave_others = NO_VGPU not in parts
    return dataclasses.replace(plan, vgpu=vgpu_plan.plan(asked, seen, plan, host, processes, leave_others))


def _of_parts(target: Target, host: Host, parts: Sequence[str]) -> Target:
    """The target with everything that is not to be changed as it is."""
    if GPUS not in parts:
        now = mig_plan.target_of(next(gpu for gpu in host.gpus if gpu.uuid == target.gpu_uuid))
        target = dataclasses.replace(now, where=target.where, sharing=target.sharing, settings=target.settings)
    others = {technique.setting: None for technique in TECHNIQUES if technique.key not in parts}
    return dataclasses.replace(target, settings={**target.settings, **others})


def _of_settings_only(plan: GpuPlan) -> GpuPlan:
    return dataclasses.replace(plan, gpu_steps=(), disturbs=())


def _check_daemons(where: str, daemons: MpsHost | None) -> None:
    if daemons is None:
        raise PlanError(
            where,
            "these are simulated GPUs of this process alone, which no daemon can serve",
            "Simulate them for the whole host (the role gpu_simulator).",
        )
    problem = daemons.available()
    if problem is not None:
        raise PlanError(where, problem.problem, problem.cure)


def _check_tenants(asked: Sequence[vgpu_plan.WantedTenant], tenants: VgpuHost | None, library_comes: bool) -> None:
    if tenants is None:
        raise PlanError(
            asked[0].where,
            "these are simulated GPUs of this process alone, which have no tenants",
            "Simulate them for the whole host (the role gpu_simulator).",
        )
    for each in asked:
        problem = tenants.group_problem(each.tenant)
        if problem is not None:
            raise PlanError("%s.group" % each.where, problem.problem, problem.cure)
    problem = tenants.available()
    where = next((each.where for each in asked if each.tenant.provider != TENANTS_BY_MPS), None)
    if problem is not None and where is not None and not library_comes:
        raise PlanError("%s: %s" % (where, problem.where), problem.problem, problem.cure)


def _check_daemons_of_tenants(asked: Sequence[vgpu_plan.WantedTenant], parts: Sequence[str]) -> None:
    for each in asked:
        if each.tenant.provider == TENANTS_BY_MPS and MPS not in parts:
            raise PlanError(
                each.where,
                "a tenant of MPS is nothing without its daemon, which this run is not about",
                "Apply the layout whole (openfleet.gpu.layout).",
            )


def _check_gpus_of_tenants(asked: Sequence[vgpu_plan.WantedTenant], host: Host) -> None:
    """Where only tenants are to change, the GPUs have to be ready for them."""
    by_uuid = {gpu.uuid: gpu for gpu in host.gpus}
    for each in asked:
        for gpu in (by_uuid[uuid] for uuid in each.tenant.gpus):
            if gpu.mig.enabled or gpu.compute_mode != "default":
                raise PlanError(
                    "%s on %s" % (each.where, gpu.label),
                    "the GPU is not ready for tenants (MIG %s, compute mode %s)"
                    % ("on" if gpu.mig.enabled else "off", gpu.compute_mode or "unknown"),
                    "Apply the layout whole (openfleet.gpu.layout), or its GPUs first (openfleet.gpu.mig).",
                )


def _check_gpus(asked: Sequence[mps_plan.WantedDaemon], host: Host) -> None:
    """Where only daemons are to change, the GPUs have to be ready for them."""
    by_uuid = {gpu.uuid: gpu for gpu in host.gpus}
    for each in asked:
        for place in each.daemon.places:
            gpu = by_uuid[place.gpu_uuid]
            if place.in_mig != gpu.mig.enabled or (not place.in_mig and gpu.compute_mode != each.compute_mode):
                raise PlanError(
                    "%s on %s" % (each.where, gpu.label),
                    "the GPU is not ready for its MPS daemon (MIG %s, compute mode %s)"
                    % ("on" if gpu.mig.enabled else "off", gpu.compute_mode or "unknown"),
                    "Apply the layout whole (openfleet.gpu.layout), or its GPUs first (openfleet.gpu.mig).",
                )


def _without(gpu: Gpu, pids: frozenset[int]) -> Gpu:
    instances = tuple(
        dataclasses.replace(
            instance,
            processes=tuple(p for p in instance.processes if p.pid not in pids),
            compute_instances=tuple(
                dataclasses.replace(c, processes=tuple(p for p in c.processes if p.pid not in pids))
                for c in instance.compute_instances
            ),
        )
        for instance in gpu.mig.instances
    )
    mig = dataclasses.replace(gpu.mig, instances=instances)
    return dataclasses.replace(gpu, mig=mig, processes=tuple(p for p in gpu.processes if p.pid not in pids))
