# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Carry out the MPS daemons' part of a plan, around the change of the GPUs; and take it back.

Files of a daemon that is stopped stay until the new layout stands: a run that finds a change cut off in between has all it
takes to start the daemon of before.
"""

from __future__ import annotations

import functools
from typing import Any, Mapping

from ...busy import make_way
from ...disturbance import Disturbance
from ...errors import ApplyError, attempt_all
from ...model import Host
from ...services import Clear
from . import plan as mps_plan
from .host import MpsHost, adjustable
from .model import KEY, MpsSeen, from_data, to_data
from .steps import MpsPlan, caps


def bring_back(data: Mapping[str, Any], daemons: MpsHost, host: Host) -> None:
    """After a change that was cut off and whose GPUs are as before it: start what it had stopped.

    Not where one of those runs that it was to start: then it had got as far as that, and the next plan goes on.
    """
    running = {seen.daemon.name for seen in daemons.observe() if seen.running}
    if running.intersection(data["starts"]):
        return
    for stopped in data["stops"]:
        daemon, devices = from_data(stopped)
        if daemon.name not in running:
            daemons.start(daemon, mps_plan.devices(daemon, host.gpus) or devices)


class MpsChange:
    """One change of a host's daemons. Each method raises ApplyError where a daemon does not do as it is told."""

    key = KEY

    def __init__(self, host: MpsHost, plan: MpsPlan, clear: Clear | None = None) -> None:
        self._host, self._plan, self._clear = host, plan, clear
        self._stopped: list[MpsSeen] = []
        self._started: list[str] = []
        self._adjusted: list[MpsSeen] = []

    @property
    def record(self) -> dict[str, Any]:
        """Return what the journal has of this change: daemons that it stops, as they were, and the names of those it starts."""
        stops = [step.seen for step in self._plan.stops if step.seen.running]
        return {
            "stops": [to_data(seen.daemon, seen.devices) for seen in stops],
            "starts": [step.name for step in self._plan.starts],
        }

    def stop(self, done: list[str]) -> None:
        """Stop the daemons that go, after a last look whether they have clients: these raise BusyError, or are ended."""
        if any(step.seen.running for step in self._plan.stops):
            self._make_way()
        for step in self._plan.stops:
            if step.seen.running:
                self._stopped.append(step.seen)
                done.append("mps %s: stop" % step.name)
            # One that does not run may be about to: systemd tries again, or has a boot to finish.
            self._host.stop(step.name)

    def start(self, host: Host, done: list[str]) -> None:
        """Give daemons their new limits, and start those that come, on the devices that the GPUs have now."""
        for step in self._plan.adjusts:
            self._adjusted.append(step.seen)
            self._host.adjust(step.daemon, step.seen.devices)
            done.append("mps %s: %s" % (step.name, step))
        for step in self._plan.starts:
            devices = mps_plan.devices(step.daemon, host.gpus)
            if devices is None:
                raise ApplyError(
                    step.where,
                    "what the MPS daemon %s was to serve is not there: %s"
                    % (step.name, self._plan.places(step.daemon.places)),
                    "Look for another tool that partitions these GPUs.",
                )
            self._started.append(step.name)
            self._host.start(step.daemon, devices)
            done.append("mps %s: start" % step.name)

    def clear_away(self) -> None:
        """On the way back, before the GPUs: daemons that came go again."""
        old = {seen.daemon.name for seen in self._stopped}
        for name in self._started:
            self._host.stop(name)
            if name not in old:
                self._host.forget(name)
        self._started.clear()

    def bring_back(self, host: Host) -> None:
        """On the way back, after the GPUs: the daemons and limits of before, as many as can be had. Raises all errors as one."""
        attempt_all(
            *(functools.partial(self._start_again, seen, host) for seen in self._stopped),
            *(functools.partial(self._adjust_back, seen) for seen in self._adjusted),
        )

    def _start_again(self, seen: MpsSeen, host: Host) -> None:
        self._host.start(seen.daemon, mps_plan.devices(seen.daemon, host.gpus) or seen.devices)

    def _adjust_back(self, seen: MpsSeen) -> None:
        now = next((one for one in self._host.observe() if one.daemon.name == seen.daemon.name), None)
        if now is not None and adjustable(now, seen.daemon, seen.devices):
            self._host.adjust(seen.daemon, seen.devices)
        elif now is None or not mps_plan.clients(now):
            self._host.start(seen.daemon, seen.devices)
        else:
            raise ApplyError(
                "mps %s" % seen.daemon.name,
                "it has clients, and takes its limits of before (%s) only by a restart" % caps(seen.daemon),
                "Run again when they have ended.",
            )

    def forget(self) -> None:
        """Once the new layout stands: nothing is left of daemons that it does not name."""
        for step in self._plan.stops:
            if step.forget:
                self._host.forget(step.name)

    def _make_way(self) -> None:
        going = {step.name for step in self._plan.stops}
        make_way(
            lambda: [
                Disturbance("mps %s (its daemon would stop)" % seen.daemon.name, who)
                for seen in self._host.observe()
                if seen.daemon.name in going
                for who in [mps_plan.clients(seen)]
                if who
            ],
            self._clear,
        )
