# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan and apply the MPS control daemons of a host as a service."""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping, Sequence

from ...errors import PlanError
from ...holders.model import short
from ...layout.types import Layout
from ...model import Gpu, Host
from ...plan.gpu_plan import Plan
from ...plan.metric_family import Family
from ...plan.services import Asked, Change, Clear, Look, PartRequest, Pids
from .host import MpsHost, adjustable
from .model import KEY, NAME, MpsSeen
from .plan import WantedDaemon, clients, plan, serves, wanted
from .steps import MpsPlan, caps


class MpsService:
    """The MPS control daemons of a host. `services.Service` documents the members."""

    key = KEY
    name = NAME

    def __init__(self, private: bool) -> None:
        self._host = None if private else MpsHost()
        self.seen: tuple[MpsSeen, ...] = ()

    @staticmethod
    def asked(layout: Layout, plan: Plan, driver_version: str | None) -> list[Asked]:
        """Return the desired daemons."""
        daemons = [each.daemon for each in wanted(layout, plan, driver_version)]
        return [
            Asked("mps %s" % each.name, "start", caps(each), tuple(place.gpu_uuid for place in each.places))
            for each in daemons
        ]

    def observe(self) -> None:
        """Read the daemons."""
        if self._host is not None:
            self.seen = self._host.observe()

    def observe_on(self, gpus: Sequence[Gpu]) -> None:
        """Do nothing: daemons can be read without the GPUs."""

    def own(self, part: MpsPlan | None = None, clients: bool = True) -> Pids:
        """Return the PIDs of the daemons and their servers.

        With `part`, returns only daemons that keep running. Includes their clients if `clients` is true.
        """
        seen = self.seen if part is None else (*part.kept, *(step.seen for step in part.adjusts))
        return serves(seen, clients)

    def plan(self, request: PartRequest) -> MpsPlan:
        """Return the steps of the daemons."""
        asked: tuple[WantedDaemon, ...] = ()
        if not request.removes:
            asked = wanted(request.layout, request.plan, request.host.driver_version, self.seen)
        if asked:
            self._check(asked[0].where)
        if not request.gpus_change:
            _check_gpus(asked, request.host)
        part = plan(asked, self.seen, request.plan, request.host, adjustable, leave_others=not request.removes)
        if self._host is None:
            return part
        # Add the daemons' clients. They are not among the holders, but may be in containers.
        holders = [holder for gpu in request.host.gpus for holder in gpu.held_by]
        holders += [holder for seen in self.seen for holder in clients(seen)]
        return dataclasses.replace(part, disturbs=(*part.disturbs, *self._host.reload_disturbs(part, holders)))

    def drift(self, layout: Layout, plan: Plan, host: Host) -> list[tuple[str, set[str]]]:
        """Return the differences from the layout."""
        from . import metrics

        return metrics.drift(layout, plan, host, self.seen)

    def families(self, gpus: Mapping[str, Gpu]) -> list[Family]:
        """Return the metrics of the daemons."""
        from . import metrics

        deaths = {} if self._host is None else self._host.server_deaths([each.daemon.name for each in self.seen])
        return metrics.families(self.seen, gpus, deaths)

    def describe(self, host: Host) -> list[str]:
        """Return the daemons as text."""
        return [_describe(seen, host) for seen in self.seen]

    def missing(self, part: MpsPlan) -> str | None:
        """Return None: a plan with daemons needs no more software.

        Without an installed control daemon, `plan` raises PlanError.
        """
        return None

    def change(self, part: MpsPlan, look: Look, clear: Clear | None) -> Change | None:
        """Return the change for this part."""
        if not part.steps or self._host is None:
            return None
        from .apply import MpsChange

        return MpsChange(self._host, part, clear)

    def unfinished(self, data: Mapping[str, Any]) -> bool:
        """Return whether the interrupted change was going to start daemons.

        The GPUs' state does not show whether the daemons were started.
        """
        return bool(data["starts"])

    def bring_back(self, data: Mapping[str, Any], host: Host) -> None:
        """Restart the daemons that the interrupted change stopped."""
        if self._host is not None:
            from .apply import bring_back

            bring_back(data, self._host, host)

    def _check(self, where: str) -> None:
        if self._host is None:
            raise PlanError(
                where,
                "GPUs that are simulated for this process only cannot have a daemon",
                "Simulate them for the whole host (the role gpu_simulator).",
            )
        problem = self._host.available()
        if problem is not None:
            raise PlanError(where, problem.problem, problem.cure)


def _check_gpus(asked: Sequence[WantedDaemon], host: Host) -> None:
    """Raise PlanError if a GPU lacks the MIG or compute mode that its daemon needs.

    For runs that change only daemons.
    """
    by_uuid = {gpu.uuid: gpu for gpu in host.gpus}
    for each in asked:
        for place in each.daemon.places:
            gpu = by_uuid[place.gpu_uuid]
            if place.in_mig != gpu.mig.enabled or (not place.in_mig and gpu.compute_mode != each.compute_mode):
                raise PlanError(
                    "%s on %s" % (each.where, gpu.label),
                    "the GPU is not ready for its MPS daemon (MIG %s, compute mode %s)"
                    % ("on" if gpu.mig.enabled else "off", gpu.compute_mode or "unknown"),
                    "Apply the whole layout (openfleet.gpu.layout), or its GPUs first (openfleet.gpu.mig).",
                )


def _describe(seen: MpsSeen, host: Host) -> str:
    indices = tuple((gpu.uuid, gpu.index) for gpu in host.gpus)
    line = "mps %s  %s  %s" % (seen.daemon.name, MpsPlan(indices=indices).places(seen.daemon.places), caps(seen.daemon))
    if seen.problem is not None:
        return "%s  %s" % (line, seen.problem)
    clients = ["pid %d%s" % (c.pid, " (%s)" % short(c.command) if c.command else "") for c in seen.clients]
    unlimited = (
        "" if seen.pipe_directory_limited is not False else ", pipe directory not limited until the daemon restarts"
    )
    return "%s  %s%s" % (line, ", ".join(clients) or "no clients", unlimited)
