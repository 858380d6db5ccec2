# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define the interface of a technique's service on a host, such as daemons."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Iterable, Mapping, NamedTuple, Protocol, Sequence

from ..frozen import frozen
from ..layout.types import Layout
from ..model import Gpu, Host
from .disturbance import Disturbance
from .gpu_plan import Plan
from .parts import HostPart

if TYPE_CHECKING:
    from .metric_family import Family

#: PIDs by GPU UUID.
Pids = Mapping[str, "frozenset[int]"]
#: A function that reads the host with its holders. Given a GPU's UUID, it reads only this GPU, and returns the last
#: known state of all others.
Look = Callable[..., Host]
#: A function that ends blocking holders, and returns whether it ended any.
Clear = Callable[[Sequence[Disturbance]], bool]


@frozen
class PartRequest:
    """The input for planning a service.

    `plan` has the plans of the GPUs and of earlier services. `keys` are the techniques of this run. If `removes` is
    true, the service is removed from the host. If `gpus_change` is false, the GPUs must already be ready for the
    service. If `installs` is true, missing software is not an error.
    """

    layout: Layout
    plan: Plan
    host: Host
    keys: Sequence[str]
    removes: bool = False
    gpus_change: bool = True
    installs: bool = False


class Asked(NamedTuple):
    """A desired daemon or tenant: its name, the verb of its plan step, and its limits.

    `gpus` has its GPUs' UUIDs.
    """

    name: str
    step: str
    limits: str
    gpus: tuple[str, ...]


class Change(Protocol):
    """A change of a service.

    Methods raise ApplyError if the service cannot be changed.
    """

    #: Key of the technique.
    key: str

    @property
    def record(self) -> dict[str, Any]:
        """Return the journal data of this change."""

    def stop(self, done: list[str]) -> None:
        """Run the steps that must complete before the GPUs change.

        Blocking holders are ended if that is permitted. Otherwise BusyError is raised.
        """

    def start(self, host: Host, done: list[str]) -> None:
        """Run the steps that follow the change of the GPUs."""

    def clear_away(self) -> None:
        """Remove what the change created, before a rollback of the GPUs."""

    def bring_back(self, host: Host) -> None:
        """Restore what the change removed, after a rollback of the GPUs."""

    def forget(self) -> None:
        """Remove leftovers of the previous layout after the new layout is complete."""


class Service(Protocol):
    """A technique's service in one run.

    `private` is true if only this process simulates the GPUs.
    """

    #: Key of the technique.
    key: str
    #: Key of the current daemons or tenants in `gpu-layout show --json`.
    name: str
    #: The current daemons or tenants as frozen values, set by `observe` and `observe_on`.
    seen: Sequence[Any]

    def __init__(self, private: bool) -> None: ...

    @staticmethod
    def asked(layout: Layout, plan: Plan, driver_version: str | None) -> Sequence[Asked]:
        """Return the desired daemons or tenants. Raises PlanError.

        Only the host's GPUs and their plan are known at this time.
        """

    def observe(self) -> None:
        """Read the current daemons or tenants, before the GPUs are read."""

    def observe_on(self, gpus: Sequence[Gpu]) -> None:
        """Read daemons or tenants that depend on the GPUs."""

    def own(self, part: HostPart | None = None, clients: bool = True) -> Pids:
        """Return the service's own processes, which do not block a change.

        Includes its clients if `clients` is true. With `part`, returns only the processes that survive this part of the
        plan.
        """

    def plan(self, request: PartRequest) -> HostPart:
        """Return the service's part of a plan.

        Raises PlanError if the layout is not possible.
        """

    def drift(self, layout: Layout, plan: Plan, host: Host) -> list[tuple[str, set[str]]]:
        """Return each difference from the layout, with the UUIDs of its GPUs.

        `plan` is the plan of the GPUs. Raises PlanError.
        """

    def families(self, gpus: Mapping[str, Gpu]) -> list[Family]:
        """Return metrics of the current daemons or tenants.

        `gpus` maps UUIDs to GPUs.
        """

    def describe(self, host: Host) -> list[str]:
        """Return one line of text for each current daemon or tenant."""

    def missing(self, part: HostPart) -> str | None:
        """Return the software that must be installed before the part can be applied.

        Returns None if nothing is missing.
        """

    def change(self, part: HostPart, look: Look, clear: Clear | None) -> Change | None:
        """Return the change for the part, or None if the part changes nothing."""

    def unfinished(self, data: Mapping[str, Any]) -> bool:
        """Return whether an interrupted change must be rolled back.

        This can be true even if all GPUs have the new layout.
        """

    def bring_back(self, data: Mapping[str, Any], host: Host) -> None:
        """Restore the state before an interrupted change.

        `data` is the change's `record`.
        """


def merged(all_pids: Iterable[Pids]) -> Pids:
    """Return the PIDs of several services as one mapping."""
    result: dict[str, frozenset[int]] = {}
    for pids in all_pids:
        for uuid, some in pids.items():
            result[uuid] = result.get(uuid, frozenset()) | some
    return result
