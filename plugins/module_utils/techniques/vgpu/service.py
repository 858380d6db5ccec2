# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan and apply the tenants of a host as a service."""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping, Sequence

from ...errors import PlanError
from ...layout.types import Layout
from ...model import Gpu, Holder, Host
from ...plan.gpu_plan import Plan
from ...plan.metric_family import Family
from ...plan.services import Asked, Change, Clear, Look, PartRequest, Pids
from .host import VgpuHost
from .model import KEY, MPS, NAME, NOT_ISOLATED, READ_ONLY, SEALED, VgpuSeen, applies, root_of_files
from .plan import WantedTenant, plan, rooms_of_leases, wanted
from .steps import VgpuPlan, also, caps, size

#: Text at the end of a tenant's line in `gpu-layout show`.
_ISOLATION = {
    NOT_ISOLATED: "  not isolated from neighbours",
    SEALED: "  neighbours can delay it",
    READ_ONLY: "  neighbours can only read its page",
}


class VgpuService:
    """The tenants of a host. `services.Service` documents the members."""

    key = KEY
    name = NAME

    def __init__(self, private: bool) -> None:
        self._applies = applies(private)
        #: The host's tenants and files. None until the GPUs are known.
        self._host: VgpuHost | None = None
        self.seen: tuple[VgpuSeen, ...] = ()

    @staticmethod
    def asked(layout: Layout, plan: Plan, driver_version: str | None) -> list[Asked]:
        """Return the tenants of the layout."""
        # Assume that the kernel can limit the memory of all GPUs (dmem). Only the host knows this.
        tenants = [each.tenant for each in wanted(layout, plan, dmem=frozenset(gpu.gpu.uuid for gpu in plan.gpus))]
        return [
            Asked("vgpu %s" % each.name, "add", "%s and %d %%" % (size(each.memory_bytes), each.sm_percent), each.gpus)
            for each in tenants
        ]

    def observe(self) -> None:
        """Do nothing: `observe_on` reads tenants when the GPUs are known."""

    def observe_on(self, gpus: Sequence[Gpu]) -> None:
        """Read the tenants."""
        if self._applies:
            self._host = VgpuHost(gpus)
            self.seen = self._host.observe()

    def own(self, part: VgpuPlan | None = None, clients: bool = True) -> Pids:
        """Return nothing: tenants' processes count as holders of their GPUs."""
        return {}

    def plan(self, request: PartRequest) -> VgpuPlan:
        """Return the steps of the tenants."""
        host = self._host
        desired: tuple[WantedTenant, ...] = ()
        if not request.removes:
            desired = wanted(request.layout, request.plan, self.seen, frozenset() if host is None else host.dmem)
        if desired:
            _check(desired, host, request.installs)
        if not request.gpus_change:
            _check_gpus(desired, request.host)
            _check_daemons(desired, request.keys)

        def processes(name: str, gpu_uuid: str) -> Sequence[Holder]:
            return () if host is None else host.processes(request.host, name, gpu_uuid)

        rooms = None if request.removes else rooms_of_leases(request.layout, request.plan)
        part = plan(desired, self.seen, request.plan, request.host, processes, rooms)
        if host is None or not part.steps:
            return part
        holders = [holder for gpu in request.host.gpus for holder in gpu.held_by]
        return dataclasses.replace(part, disturbs=(*part.disturbs, *host.reload_disturbs(part, holders)))

    def drift(self, layout: Layout, plan: Plan, host: Host) -> list[tuple[str, set[str]]]:
        """Return the differences from the layout."""
        if self._host is None:
            return []
        from . import metrics

        return metrics.drift(layout, plan, host, self.seen, self._host.dmem, self._host.available() is None)

    def families(self, gpus: Mapping[str, Gpu]) -> list[Family]:
        """Return the metrics of the tenants."""
        from . import counters, metrics

        return metrics.families(self.seen, gpus, counters.read(root_of_files()))

    def describe(self, host: Host) -> list[str]:
        """Return one line of text per tenant."""
        return [_describe(seen, host) for seen in self.seen]

    def missing(self, part: VgpuPlan) -> str | None:
        """Return why the library is missing, or None.

        Returns None if the library is installed, or not needed.
        """
        problem = self._host.available() if part.takes_library and self._host is not None else None
        return None if problem is None else str(problem)

    def change(self, part: VgpuPlan, look: Look, clear: Clear | None) -> Change | None:
        """Return the change for this part, or None if the part has no steps."""
        if not part.steps or self._host is None:
            return None
        from .apply import VgpuChange

        return VgpuChange(self._host, part, look, clear)

    def unfinished(self, data: Mapping[str, Any]) -> bool:
        """Return False: the next plan completes an interrupted change."""
        return False

    def bring_back(self, data: Mapping[str, Any], host: Host) -> None:
        """Restore the tenants as they were before the interrupted change."""
        if self._applies:
            from .apply import bring_back

            bring_back(data, VgpuHost(host.gpus))


def _check(desired: Sequence[WantedTenant], host: VgpuHost | None, installs: bool) -> None:
    if host is None:
        raise PlanError(
            desired[0].where,
            "GPUs that are simulated for this process only cannot have tenants",
            "Simulate GPUs for the whole host (role gpu_simulator).",
        )
    for each in desired:
        problem = host.group_problem(each.tenant)
        if problem is not None:
            raise PlanError("%s.group" % each.where, problem.problem, problem.cure)
    problem = host.available()
    where = next((each.where for each in desired if each.tenant.provider != MPS), None)
    if problem is not None and where is not None and not installs:
        raise PlanError("%s: %s" % (where, problem.where), problem.problem, problem.cure)


def _check_daemons(desired: Sequence[WantedTenant], keys: Sequence[str]) -> None:
    for each in desired:
        if each.tenant.provider == MPS and MPS not in keys:
            raise PlanError(
                each.where,
                "a tenant with the provider mps needs its MPS daemon, but this run applies no MPS daemons",
                "Apply the whole layout (openfleet.gpu.layout).",
            )


def _check_gpus(desired: Sequence[WantedTenant], host: Host) -> None:
    """Raise PlanError if a GPU is not ready for tenants.

    For runs that change only tenants.
    """
    by_uuid = {gpu.uuid: gpu for gpu in host.gpus}
    for each in desired:
        for gpu in (by_uuid[uuid] for uuid in each.tenant.gpus):
            if gpu.mig.enabled or gpu.compute_mode != "default":
                raise PlanError(
                    "%s on %s" % (each.where, gpu.label),
                    "the GPU is not ready for tenants (MIG %s, compute mode %s)"
                    % ("on" if gpu.mig.enabled else "off", gpu.compute_mode or "unknown"),
                    "Apply the whole layout (openfleet.gpu.layout), or its GPUs first (openfleet.gpu.mig).",
                )


def _describe(seen: VgpuSeen, host: Host) -> str:
    tenant, usage = seen.tenant, seen.usage
    plan = VgpuPlan(indices=tuple((gpu.uuid, gpu.index) for gpu in host.gpus))
    line = "vgpu %s  %s  %s" % (tenant.name, plan.gpus(tenant), caps(tenant) + also(tenant))
    if usage is not None:
        used = {each.gpu_uuid: each.used_bytes for each in usage.gpus}
        uses = " and ".join(size(used.get(uuid, 0)) for uuid in tenant.gpus)
        line += "  %s used by %d process%s" % (uses, usage.processes, "" if usage.processes == 1 else "es")
    return line + _ISOLATION.get(seen.isolation, "")
