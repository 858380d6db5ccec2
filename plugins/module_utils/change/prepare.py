# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Look at a host and plan a layout for it: the GPUs with their holders and settings, and the services beside them."""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping, Sequence

from ..frozen import frozen
from ..gpu_plan import GpuPlan, Plan, Target
from ..holders.find import find_holders
from ..holders.mark import mark
from ..layout.types import Layout
from ..model import Gpu, Host
from ..nvml.bounded_session import BoundedSession
from ..ownership import Ownership
from ..plan_parts import HostPart, NoPart
from ..services import PartRequest, Pids, Service, merged
from ..techniques.registry import SERVING, SETTINGS
from . import planner
from .targets import targets

#: What a run may be about: MIG and compute modes, and each technique by its key.
GPUS = "gpus"
ALL_PARTS = (GPUS, *(technique.key for technique in (*SETTINGS, *SERVING)))


@frozen
class PlanRequest:
    """Which `parts` of a layout are planned, by the plan that was `saved` for it where there is one.

    With `installs` it is no error that the software of a service is missing.
    """

    parts: Sequence[str] = ALL_PARTS
    saved: Mapping[str, Any] | None = None
    installs: bool = False


def removal_of(key: str) -> str:
    """Return what stands for the technique in a run that removes all that it has on the host, whatever the layout says."""
    return "no_%s" % key


def services_for(parts: Sequence[str], layout: Layout, private: bool) -> tuple[Service, ...]:
    """Return the services that a run is about, less those that the host does not have and the layout does not ask for."""
    about = [each for each in SERVING if {each.key, removal_of(each.key)}.intersection(parts)]
    return tuple(each.service(private) for each in about if each.used(layout, private))


def look(session: BoundedSession, services: Sequence[Service]) -> Host:
    """Look at the services and the GPUs, and return the GPUs with their holders. What belongs to a service holds nothing."""
    for service in services:
        service.observe()
    host = observe(session, merged(service.own() for service in services))
    for service in services:
        service.observe_on(host.gpus)
    return host


def observe(session: BoundedSession, own: Pids | None = None, only: str | None = None) -> Host:
    """Return the host with all holders of its GPUs and instances, except the processes of services that are their `own`.

    `only` is the UUID of the GPU that is read, as `BoundedSession.observe` takes it; all holders are looked for.
    """
    host, own = session.observe(only=only), own or {}
    holders = [h for h in find_holders(host) if h.pid not in own.get(h.gpu_uuid, ())]
    if own:
        host = dataclasses.replace(host, gpus=tuple(_without(gpu, own.get(gpu.uuid, frozenset())) for gpu in host.gpus))
    return mark(host, holders)


def staying(plan: Plan, services: Sequence[Service]) -> Pids:
    """Return the processes of services that the plan leaves running."""
    parts = {part.key: part for part in plan.parts}
    return merged(service.own(parts[service.key]) for service in services)


def make_plan(
    layout: Layout,
    host: Host,
    ownership: Ownership,
    request: PlanRequest,
    services: Sequence[Service],
) -> Plan:
    """Return the plan of these parts of the layout, or the one that was saved.

    Raises SelectorError and PlanError before anything has changed.
    """
    parts, saved = request.parts, request.saved
    wanted = tuple(_of_parts(target, host, parts) for target in targets(layout, host.gpus))
    if saved is None:
        plan = planner.plan(host.gpus, wanted, ownership)
    else:
        from . import plan_file

        plan = plan_file.restore(saved, host, wanted, ownership)
    if GPUS not in parts:
        # A MIG mode that is pending there is not this run's business either.
        plan = dataclasses.replace(plan, gpus=tuple(_of_settings_only(gpu) for gpu in plan.gpus))
    by_key = {service.key: service for service in services}
    for each in SERVING:
        part: HostPart = NoPart(each.key)
        if each.key in by_key:
            removes = removal_of(each.key) in parts
            part = by_key[each.key].plan(
                PartRequest(layout, plan, host, parts, removes, GPUS in parts, request.installs)
            )
        plan = dataclasses.replace(plan, parts=(*plan.parts, part))
    if saved is not None:
        from . import plan_file

        plan_file.check_beside(saved, plan)
    return plan


def _of_parts(target: Target, host: Host, parts: Sequence[str]) -> Target:
    """The target with everything that is not to be changed as it is."""
    if GPUS not in parts:
        now = planner.target_of(next(gpu for gpu in host.gpus if gpu.uuid == target.gpu_uuid))
        target = dataclasses.replace(now, where=target.where, sharing=target.sharing, settings=target.settings)
    others = {technique.setting: None for technique in SETTINGS if technique.key not in parts}
    return dataclasses.replace(target, settings={**target.settings, **others})


def _of_settings_only(plan: GpuPlan) -> GpuPlan:
    return dataclasses.replace(plan, instance_steps=(), disturbs=())


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
