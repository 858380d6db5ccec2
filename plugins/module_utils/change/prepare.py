# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read a host, and plan a layout for it.

Reads the GPUs with their holders and settings, and the services.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Mapping, Sequence

from ..frozen import frozen
from ..layout.types import Layout
from ..model import Host
from ..plan.gpu_plan import GpuPlan, Plan, Target
from ..plan.ownership import Ownership
from ..plan.parts import HostPart, NoPart
from ..plan.services import PartRequest, Pids, Service, merged
from ..techniques.registry import SERVING, SETTINGS
from ..vendors.registry import vendor_of, vendor_of_host

if TYPE_CHECKING:
    from ..vendors.protocol import Session
from . import planner
from .targets import targets

#: The part of a layout with the divisions and the vendor's settings. ALL_PARTS also has one part per technique, named
#: by the technique's key.
GPUS = "gpus"
ALL_PARTS = (GPUS, *(technique.key for technique in (*SETTINGS, *SERVING)))


@frozen
class PlanRequest:
    """The parts of a layout to plan, and the `saved` plan or None.

    If `installs` is true, missing software of a service is not an error.
    """

    parts: Sequence[str] = ALL_PARTS
    saved: Mapping[str, Any] | None = None
    installs: bool = False


def removal_of(key: str) -> str:
    """Return the name of the part that removes this technique's service.

    A run with this part removes the service from the host, whatever the layout contains.
    """
    return "no_%s" % key


def services_for(parts: Sequence[str], layout: Layout, private: bool) -> tuple[Service, ...]:
    """Return the services that the host runs or that the layout needs."""
    about = [each for each in SERVING if {each.key, removal_of(each.key)}.intersection(parts)]
    return tuple(each.service(private) for each in about if each.used(layout, private))


def look(session: Session, services: Sequence[Service]) -> Host:
    """Read the services and the GPUs. Return the host with the GPUs' holders.

    Processes of a service do not count as holders.
    """
    for service in services:
        service.observe()
    host = observe(session, merged(service.own() for service in services))
    for service in services:
        service.observe_on(host.gpus)
    return host


def observe(session: Session, own: Pids | None = None, only: str | None = None) -> Host:
    """Return the host with the holders of its GPUs and instances.

    `own` has the processes of services by GPU UUID. They do not count as holders. If `only` is the UUID of a GPU, only
    this GPU is read, as in `protocol.Session.observe`. Holders are always read for all GPUs.
    """
    return vendor_of_host().with_holders(session.observe(only=only), own or {})


def staying(plan: Plan, services: Sequence[Service]) -> Pids:
    """Return the processes of services that keep running under the plan."""
    parts = {part.key: part for part in plan.parts}
    return merged(service.own(parts[service.key]) for service in services)


def make_plan(
    layout: Layout,
    host: Host,
    ownership: Ownership,
    request: PlanRequest,
    services: Sequence[Service],
) -> Plan:
    """Return the plan for these parts of the layout, or the saved plan.

    Raises SelectorError or PlanError before anything changes.
    """
    parts, saved = request.parts, request.saved
    wanted = tuple(_of_parts(target, host, parts) for target in targets(layout, host.gpus))
    if saved is None:
        plan = planner.plan(host.gpus, wanted, ownership)
    else:
        from . import plan_file

        plan = plan_file.restore(saved, host, wanted, ownership)
    if GPUS not in parts:
        # Without the part GPUS, a run also leaves a pending division unchanged.
        plan = dataclasses.replace(plan, gpus=tuple(map(_of_settings_only, plan.gpus)), reload_disturbs=())
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
    """Return the target, with the current state in place of parts not in this run."""
    if GPUS not in parts:
        gpu = next(gpu for gpu in host.gpus if gpu.uuid == target.gpu_uuid)
        now = planner.target_of(gpu)
        kept = {each.setting: now.settings[each.setting] for each in vendor_of(gpu).settings}
        settings = {**target.settings, **kept}
        target = dataclasses.replace(now, where=target.where, sharing=target.sharing, settings=settings)
    others = {technique.setting: None for technique in SETTINGS if technique.key not in parts}
    return dataclasses.replace(target, settings={**target.settings, **others})


def _of_settings_only(plan: GpuPlan) -> GpuPlan:
    return dataclasses.replace(plan, division=dataclasses.replace(plan.division, steps=(), disturbs=()))
