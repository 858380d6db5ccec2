# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Carry out the tenants' part of a plan, around the change of the GPUs; and take it back.

Each file is replaced whole, and who reads one finds the old quota or the new one. A change that is cut off between two
tenants is completed by the next plan.
"""

from __future__ import annotations

import functools
from typing import Any, Mapping, Sequence

from ...busy import make_way
from ...disturbance import Disturbance
from ...errors import BusyError, attempt_all
from ...model import Holder, Host
from ...services import Clear, Look
from .host import VgpuHost
from .model import KEY, VgpuName, VgpuTenant, from_data, to_data
from .plan import unheld
from .steps import ChangeTenant, RemoveTenant, VgpuPlan


def bring_back(data: Mapping[str, Any], tenants: VgpuHost) -> None:
    """After a change that was cut off and whose GPUs are as before it: so are the tenants."""
    there = {seen.tenant.name for seen in tenants.observe()}
    for name in there.intersection(data["comes"]):
        tenants.forget(name)
    for each in data["before"]:
        tenants.write(from_data(each))


class VgpuChange:
    """One change of a host's tenants. `look` observes the host with its holders."""

    key = KEY

    def __init__(self, host: VgpuHost, plan: VgpuPlan, look: Look, clear: Clear | None = None) -> None:
        self._host, self._plan, self._look, self._clear = host, plan, look, clear
        self._changed: list[VgpuTenant] = []
        self._came: list[str] = []

    @property
    def record(self) -> dict[str, Any]:
        """Return what the journal has of this change: the tenants that it changes, as they were, and the names that come."""
        return {
            "before": [to_data(step.seen.tenant) for step in self._plan.changes],
            "comes": [step.name for step in self._plan.adds],
        }

    @property
    def _unholding(self) -> tuple[RemoveTenant | ChangeTenant, ...]:
        return (*self._plan.removes, *self._plan.changes)

    def stop(self, done: list[str]) -> None:
        """A last look for processes that no quota would hold any more: they raise BusyError, or are ended.

        Processes that have got a name that ends raise it too, and are not ended: the next plan keeps the name.
        """
        if any(step.unheld for step in self._unholding):
            make_way(self._in_the_way, self._clear)
        ended = {name: change for change in self._plan.changes for name in change.ended_names}
        disturbs = [
            Disturbance(
                "the name %s of vgpu %s" % (used.name, ended[used.name].name), _processes(ended[used.name], used)
            )
            for used in (self._host.names_in_use(tuple(ended)) if ended else ())
        ]
        if disturbs:
            raise BusyError(disturbs, "processes have started under a name that would end", "Run again: it then stays.")

    def start(self, _host: Host, done: list[str]) -> None:
        """Give tenants their new quotas, in the plan's order, then bring those that come."""
        for change in self._plan.changes:
            self._changed.append(change.seen.tenant)
            self._host.write(change.tenant)
            done.append("vgpu %s: %s" % (change.name, change))
        for add in self._plan.adds:
            self._came.append(add.name)
            self._host.write(add.tenant)
            done.append("vgpu %s: %s" % (add.name, add))

    def forget(self) -> None:
        """Take away the tenants that go, once the new layout stands: files that go do not come back the same.

        Running processes have the region open, and containers have it mounted.
        """
        for step in self._plan.removes:
            self._host.forget(step.name)

    def clear_away(self) -> None:
        """Do nothing: tenants that came are in the way of no GPU."""

    def bring_back(self, _host: Host) -> None:
        """Restore the tenants of before, as many as can be had. Raises all errors as one."""
        attempt_all(
            *(functools.partial(self._host.forget, name) for name in self._came),
            # The other way round, so that again what one gives up comes before what another one gets.
            *(functools.partial(self._host.write, tenant) for tenant in reversed(self._changed)),
        )

    def _in_the_way(self) -> list[Disturbance]:
        host = self._look()

        def processes(name: str, uuid: str) -> Sequence[Any]:
            return self._host.processes(host, name, uuid)

        return [found for step in self._unholding for found in unheld(step, processes, self._plan.indices)]


def _processes(change: ChangeTenant, used: VgpuName) -> tuple[Holder, ...]:
    return tuple(Holder(change.tenant.gpus[0], None, "process", "pid %d" % pid, pid) for pid in used.pids)
