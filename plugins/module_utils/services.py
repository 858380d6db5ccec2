# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define the interface of a technique's service on a host, such as daemons."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Iterable, Mapping, NamedTuple, Protocol, Sequence

from .disturbance import Disturbance
from .frozen import frozen
from .gpu_plan import Plan
from .layout.types import Layout
from .model import Gpu, Host
from .plan_parts import HostPart

if TYPE_CHECKING:
    from .metric_family import Family

#: Process ids by UUID of the GPU.
Pids = Mapping[str, "frozenset[int]"]
#: Reads the host with its holders. With the UUID of a GPU, it reads only that GPU and returns the others as last read.
Look = Callable[..., Host]
#: Ends blocking holders. Returns whether it ended any.
Clear = Callable[[Sequence[Disturbance]], bool]


@frozen
class PartRequest:
    """The input of a service's plan.

    `plan` has the GPUs, and the parts of the previous services. `keys` are the techniques of this run. With `removes` the service
    is removed from the host. Without `gpus_change` the GPUs must be ready for it. With `installs` missing software is no error.
    """

    layout: Layout
    plan: Plan
    host: Host
    keys: Sequence[str]
    removes: bool = False
    gpus_change: bool = True
    installs: bool = False


class Asked(NamedTuple):
    """A desired object of a service: name, verb of its plan step, and limits.

    `gpus` are the UUIDs of its GPUs.
    """

    name: str
    step: str
    limits: str
    gpus: tuple[str, ...]


class Change(Protocol):
    """One change of a service.

    Methods raise ApplyError if the service does not follow.
    """

    #: Key of the technique.
    key: str

    @property
    def record(self) -> dict[str, Any]:
        """Return the journal's record of this change."""

    def stop(self, done: list[str]) -> None:
        """Run the steps before the GPUs change.

        Raises BusyError for blocking holders, or ends them.
        """

    def start(self, host: Host, done: list[str]) -> None:
        """Run the steps after the GPUs changed."""

    def clear_away(self) -> None:
        """Roll back before the GPUs: remove what was created."""

    def bring_back(self, host: Host) -> None:
        """Roll back after the GPUs: restore what was removed."""

    def forget(self) -> None:
        """Remove leftovers of the previous layout, after the new one is complete."""


class Service(Protocol):
    """The service of a technique in one run.

    `private`: the GPUs are simulated for this process alone.
    """

    #: Key of the technique.
    key: str
    #: Name of the current objects in `gpu-layout show --json`.
    name: str
    #: The current objects as frozen values, filled by `observe` and `observe_on`.
    seen: Sequence[Any]

    def __init__(self, private: bool) -> None: ...

    @staticmethod
    def asked(layout: Layout, plan: Plan, driver_version: str | None) -> Sequence[Asked]:
        """Return the desired objects on a host of which only the GPUs and their plan are known. Raises PlanError."""

    def observe(self) -> None:
        """Read the current objects, before the GPUs are read."""

    def observe_on(self, gpus: Sequence[Gpu]) -> None:
        """Read the objects that depend on the GPUs."""

    def own(self, part: HostPart | None = None, clients: bool = True) -> Pids:
        """Return the service's own processes, with or without its `clients`.

        They do not block a change. With a `part` of a plan: the processes that survive it.
        """

    def plan(self, request: PartRequest) -> HostPart:
        """Return its part of a plan. Raises PlanError if the layout is impossible."""

    def drift(self, layout: Layout, plan: Plan, host: Host) -> list[tuple[str, set[str]]]:
        """Return what differs from the layout, each with the UUIDs of the GPUs, given the plan of the GPUs. Raises PlanError."""

    def families(self, gpus: Mapping[str, Gpu]) -> list[Family]:
        """Return the metrics of the current objects, on GPUs by UUID."""

    def describe(self, host: Host) -> list[str]:
        """Return the current objects in words, one line each."""

    def missing(self, part: HostPart) -> str | None:
        """Return the software that must be installed before the part can be applied."""

    def change(self, part: HostPart, look: Look, clear: Clear | None) -> Change | None:
        """Return the part as a change; None if it changes nothing."""

    def unfinished(self, data: Mapping[str, Any]) -> bool:
        """Return whether to roll back an interrupted change even if all GPUs match."""

    def bring_back(self, data: Mapping[str, Any], host: Host) -> None:
        """Restore the state before an interrupted change, from its `record`."""


def merged(all_pids: Iterable[Pids]) -> Pids:
    """Return the process ids of several services as one."""
    result: dict[str, frozenset[int]] = {}
    for pids in all_pids:
        for uuid, some in pids.items():
            result[uuid] = result.get(uuid, frozenset()) | some
    return result
