# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Describe what a technique runs beside the GPUs of a host, such as daemons: how a run looks at it, plans it and changes it."""

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
#: Observes the host with its holders. Called with the UUID of a GPU it reads that one; the others are as they were seen last.
Look = Callable[..., Host]
#: Ends holders in the way; returns whether it could end any.
Clear = Callable[[Sequence[Disturbance]], bool]


@frozen
class PartRequest:
    """What a service plans from. `plan` has the GPUs, and the parts of the services before this one.

    `keys` are the techniques that the run is about. With `removes` all that the service has on the host goes. Without
    `gpus_change` the GPUs have to be ready for it. With `installs` it is no error that its software is missing.
    """

    layout: Layout
    plan: Plan
    host: Host
    keys: Sequence[str]
    removes: bool = False
    gpus_change: bool = True
    installs: bool = False


class Asked(NamedTuple):
    """Something that a layout asks of a service: its name, the word for the step that brings it, and its limits in words.

    `gpus` are the UUIDs of its GPUs.
    """

    name: str
    step: str
    limits: str
    gpus: tuple[str, ...]


class Change(Protocol):
    """One change of a service. Methods raise ApplyError if the service does not do what it is told."""

    #: Key of the technique.
    key: str

    @property
    def record(self) -> dict[str, Any]:
        """Return what the journal has of this change."""

    def stop(self, done: list[str]) -> None:
        """Do what comes before the GPUs change. Raises BusyError for holders in the way, or ends them."""

    def start(self, host: Host, done: list[str]) -> None:
        """Do what comes after the GPUs changed."""

    def clear_away(self) -> None:
        """Take away what came, on the way back, before the GPUs."""

    def bring_back(self, host: Host) -> None:
        """Restore what was there, on the way back, after the GPUs."""

    def forget(self) -> None:
        """Remove what the new layout does not name, once it stands."""


class Service(Protocol):
    """What a technique has beside the GPUs, in one run. `private`: the GPUs are simulated for this process alone."""

    #: Key of the technique.
    key: str
    #: Name of what is there, as `gpu-layout show --json` has it.
    name: str
    #: What is there, as frozen values; filled by `observe` and `observe_on`.
    seen: Sequence[Any]

    def __init__(self, private: bool) -> None: ...

    @staticmethod
    def asked(layout: Layout, plan: Plan, driver_version: str | None) -> Sequence[Asked]:
        """Return what the layout asks for on a host of which only the GPUs are known, with their plan. Raises PlanError."""

    def observe(self) -> None:
        """Look at what is there. This comes before the look at the GPUs."""

    def observe_on(self, gpus: Sequence[Gpu]) -> None:
        """Look at what only a look at the GPUs tells."""

    def own(self, part: HostPart | None = None, clients: bool = True) -> Pids:
        """Return the processes that belong to it and so do not block a change, with or without its `clients`.

        With a `part` of a plan: the processes that stay through it.
        """

    def plan(self, request: PartRequest) -> HostPart:
        """Return its part of a plan. Raises PlanError if the layout cannot be had."""

    def drift(self, layout: Layout, plan: Plan, host: Host) -> list[tuple[str, set[str]]]:
        """Return what differs from the layout, each with the UUIDs of the GPUs, given the plan of the GPUs. Raises PlanError."""

    def families(self, gpus: Mapping[str, Gpu]) -> list[Family]:
        """Return the metrics of what is there, on GPUs by UUID."""

    def describe(self, host: Host) -> list[str]:
        """Return what is there in words, a line each."""

    def missing(self, part: HostPart) -> str | None:
        """Return what has to be installed before the part can be carried out."""

    def change(self, part: HostPart, look: Look, clear: Clear | None) -> Change | None:
        """Return the part as a change; None if it changes nothing."""

    def unfinished(self, data: Mapping[str, Any]) -> bool:
        """Return whether a change that was cut off has to be taken back even if all GPUs are as the layout says."""

    def bring_back(self, data: Mapping[str, Any], host: Host) -> None:
        """Restore what was there before a change that was cut off, whose `record` this is."""


def merged(all_pids: Iterable[Pids]) -> Pids:
    """Return the process ids of several services as one."""
    found: dict[str, frozenset[int]] = {}
    for pids in all_pids:
        for uuid, some in pids.items():
            found[uuid] = found.get(uuid, frozenset()) | some
    return found
