# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Apply the tenants' part of a plan after the GPUs changed, and roll it back.

Files are replaced atomically, so that readers see either the old or the new quota. After an interruption between two
tenants, the next plan completes the change.
"""

from __future__ import annotations

import functools
from typing import Any, Mapping, Sequence

from ...errors import BusyError, attempt_all
from ...model import Holder, Host
from ...plan.busy import make_way
from ...plan.disturbance import Disturbance
from ...plan.services import Clear, Look
from .host import VgpuHost
from .model import KEY, VgpuName, VgpuTenant, from_data, to_data
from .plan import unheld
from .steps import ChangeTenant, RemoveTenant, VgpuPlan


def bring_back(data: Mapping[str, Any], tenants: VgpuHost) -> None:
    """Restore the tenants before an interrupted change.

    Call this after the GPUs were restored.
    """
    current = {seen.tenant.name for seen in tenants.observe()}
    for name in current.intersection(data["comes"]):
        tenants.forget(name)
    for spec in data["before"]:
        tenants.write(from_data(spec))


class VgpuChange:
    """A change of the host's tenants.

    `look` reads the host with the holders of its GPUs.
    """

    key = KEY

    def __init__(self, host: VgpuHost, plan: VgpuPlan, look: Look, clear: Clear | None = None) -> None:
        self._host, self._plan, self._look, self._clear = host, plan, look, clear
        self._changed: list[VgpuTenant] = []
        self._came: list[str] = []

    @property
    def record(self) -> dict[str, Any]:
        """Return the journal data of this change.

        The data has the changed tenants' previous specs, and the new tenants' names.
        """
        return {
            "before": [to_data(step.seen.tenant) for step in self._plan.changes],
            "comes": [step.name for step in self._plan.adds],
        }

    @property
    def _unholding(self) -> tuple[RemoveTenant | ChangeTenant, ...]:
        return (*self._plan.removes, *self._plan.changes)

    def stop(self, done: list[str]) -> None:
        """Check again for processes that would escape their quota.

        They are ended if that is permitted. Otherwise BusyError is raised.

        Processes that have started under a name that the change removes also cause BusyError. They are not ended,
        because the next plan keeps the name.
        """
        if any(step.unheld for step in self._unholding):
            make_way(self._blocking, self._clear)
        ended = {name: change for change in self._plan.changes for name in change.ended_names}
        disturbs = [
            Disturbance(
                "the name %s of vgpu %s" % (used.name, ended[used.name].name), _processes(ended[used.name], used)
            )
            for used in (self._host.names_in_use(tuple(ended)) if ended else ())
        ]
        if disturbs:
            raise BusyError(
                disturbs,
                "processes started under a name that the change removes",
                "Run again. The plan then keeps the name.",
            )

    def start(self, _host: Host, done: list[str]) -> None:
        """Apply the changed quotas in the order of the plan, then add new tenants."""
        for change in self._plan.changes:
            self._changed.append(change.seen.tenant)
            self._host.write(change.tenant)
            done.append("vgpu %s: %s" % (change.name, change))
        for add in self._plan.adds:
            self._came.append(add.name)
            self._host.write(add.tenant)
            done.append("vgpu %s: %s" % (add.name, add))

    def forget(self) -> None:
        """Remove tenants after the rest of the layout was applied.

        They are removed last, because a rollback could not restore their files. Running processes have the removed
        region open, and containers have it mounted.
        """
        for step in self._plan.removes:
            self._host.forget(step.name)

    def clear_away(self) -> None:
        """Do nothing, because new tenants block no GPU."""

    def bring_back(self, _host: Host) -> None:
        """Restore as many previous tenants as possible.

        Raises all errors as one.
        """
        attempt_all(
            *(functools.partial(self._host.forget, name) for name in self._came),
            # The changes were applied in the order shrink, grow. In reverse order, each grow becomes a shrink, so that
            # tenants shrink before others grow.
            *(functools.partial(self._host.write, tenant) for tenant in reversed(self._changed)),
        )

    def _blocking(self) -> list[Disturbance]:
        host = self._look()

        def processes(name: str, uuid: str) -> Sequence[Any]:
            return self._host.processes(host, name, uuid)

        return [disturbance for step in self._unholding for disturbance in unheld(step, processes, self._plan.indices)]


def _processes(change: ChangeTenant, used: VgpuName) -> tuple[Holder, ...]:
    return tuple(Holder(change.tenant.gpus[0], None, "process", "pid %d" % pid, pid) for pid in used.pids)
