# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define the MPS part of a plan: the steps and their text.

`plan` decides which steps are needed.
"""

from __future__ import annotations

from typing import Any, ClassVar, Union

from ...frozen import frozen
from ...model import to_data
from ...plan.disturbance import Disturbance
from ...sizes import format_size
from .model import KEY, MpsDaemon, MpsPlace, MpsSeen


@frozen
class StopMps:
    """Stop a daemon, and remove its files if `forget` is true."""

    seen: MpsSeen
    forget: bool

    @property
    def name(self) -> str:
        return self.seen.daemon.name

    def __str__(self) -> str:
        return "stop" if self.seen.running else "remove its files"


@frozen
class StartMps:
    daemon: MpsDaemon
    where: str

    @property
    def name(self) -> str:
        return self.daemon.name

    def __str__(self) -> str:
        return "start (%s)" % caps(self.daemon)


@frozen
class AdjustMps:
    """Change the limits of a running daemon, or rewrite its files for this release."""

    seen: MpsSeen
    daemon: MpsDaemon

    @property
    def name(self) -> str:
        return self.daemon.name

    def __str__(self) -> str:
        return "change to %s" % caps(self.daemon) if self.seen.daemon != self.daemon else "rewrite its files"


MpsStep = Union[StopMps, StartMps, AdjustMps]


@frozen
class MpsPlan:
    """The steps for a host's daemons.

    Daemons stop before the GPUs change. All other steps follow the change.
    """

    key: ClassVar[str] = KEY
    stops: tuple[StopMps, ...] = ()
    adjusts: tuple[AdjustMps, ...] = ()
    starts: tuple[StartMps, ...] = ()
    kept: tuple[MpsSeen, ...] = ()
    disturbs: tuple[Disturbance, ...] = ()
    #: (UUID, index) of each of the host's GPUs, for texts.
    indices: tuple[tuple[str, int], ...] = ()

    @property
    def steps(self) -> tuple[MpsStep, ...]:
        return (*self.stops, *self.adjusts, *self.starts)

    def planned(self) -> list[MpsSeen]:
        """Return the daemons that run after the plan is applied."""
        daemons = [*(step.daemon for step in (*self.adjusts, *self.starts)), *(seen.daemon for seen in self.kept)]
        return [MpsSeen(daemon, (), running=True) for daemon in daemons]

    def to_data(self) -> list[dict[str, Any]]:
        """Return the steps as JSON data, independent of which daemons run now."""
        found = []
        for step in self.steps:
            data: dict[str, Any] = {"step": type(step).__name__, "name": step.name}
            if isinstance(step, StopMps):
                data["forget"] = step.forget
            else:
                data["daemon"] = to_data(step.daemon)
            found.append(data)
        return found

    def gpus_changed(self) -> frozenset[str]:
        """Return the UUIDs of the GPUs whose daemons change."""
        daemons = [s.daemon if not isinstance(s, StopMps) else s.seen.daemon for s in self.steps]
        return frozenset(place.gpu_uuid for daemon in daemons for place in daemon.places)

    def lines(self) -> list[str]:
        """Return one line for each changed daemon."""
        by_name: dict[str, list[MpsStep]] = {}
        for step in self.steps:
            by_name.setdefault(step.name, []).append(step)
        return ["mps %s: %s" % (name, self._words(steps)) for name, steps in sorted(by_name.items())]

    def _words(self, steps: list[MpsStep]) -> str:
        return ", ".join("%s on %s" % (step, self.places(_places(step))) for step in steps)

    def places(self, places: tuple[MpsPlace, ...]) -> str:
        """Return a daemon's devices as text for messages."""
        index = dict(self.indices)
        names = []
        for place in places:
            gpu = "gpu %d" % index[place.gpu_uuid] if place.gpu_uuid in index else place.gpu_uuid
            names.append("%s@%d of %s" % (place.profile, place.start, gpu) if place.in_mig else gpu)
        return " and ".join(names)

    def before(self, gpu_uuid: str) -> str:
        """Return the names of the daemons on the GPU before the plan, as text."""
        gone = [step.seen for step in self.stops] + [step.seen for step in self.adjusts]
        return _named([s.daemon for s in (*gone, *self.kept) if s.running], gpu_uuid)

    def after(self, gpu_uuid: str) -> str:
        """Return the names of the daemons on the GPU after the plan, as text."""
        daemons = [s.daemon for s in (*self.adjusts, *self.starts)] + [seen.daemon for seen in self.kept]
        return _named(daemons, gpu_uuid)


def caps(daemon: MpsDaemon) -> str:
    """Return the limits of each client as text."""
    clients = "%d client%s of %d %%" % (
        daemon.clients,
        "" if daemon.clients == 1 else "s",
        daemon.active_thread_percentage,
    )
    limit = daemon.pinned_memory_limit_bytes
    return clients if limit is None else "%s and %s" % (clients, format_size(limit))


def _places(step: MpsStep) -> tuple[MpsPlace, ...]:
    return step.seen.daemon.places if isinstance(step, StopMps) else step.daemon.places


def _named(daemons: list[MpsDaemon], gpu_uuid: str) -> str:
    names = sorted(d.name for d in daemons if any(place.gpu_uuid == gpu_uuid for place in d.places))
    return "MPS %s" % " and ".join(names) if names else ""
