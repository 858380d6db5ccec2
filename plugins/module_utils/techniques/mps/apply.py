# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Apply or roll back the MPS part of a plan, around the change of the GPUs.

A stopped daemon's files are kept until the new layout is complete. After an interruption, the next run needs them to
restart the daemon.
"""

from __future__ import annotations

import functools
from typing import Any, Mapping

from ...errors import ApplyError, attempt_all
from ...model import Host
from ...plan.busy import make_way
from ...plan.disturbance import Disturbance
from ...plan.services import Clear
from . import plan as mps_plan
from .host import MpsHost, adjustable
from .model import KEY, MpsSeen, from_data, to_data
from .steps import MpsPlan, caps


def bring_back(data: Mapping[str, Any], daemons: MpsHost, host: Host) -> None:
    """Restart the daemons that an interrupted change stopped.

    Each daemon gets its GPUs' current devices. If the interrupted change has already started a daemon, nothing is
    restarted, because the next plan completes the change.
    """
    running = {seen.daemon.name for seen in daemons.observe() if seen.running}
    if running.intersection(data["starts"]):
        return
    for stopped in data["stops"]:
        daemon, devices = from_data(stopped)
        if daemon.name not in running:
            daemons.start(daemon, mps_plan.devices(daemon, host.gpus) or devices)


class MpsChange:
    """A change of the host's daemons.

    The methods raise ApplyError if a daemon does not start, stop or accept its limits.
    """

    key = KEY

    def __init__(self, host: MpsHost, plan: MpsPlan, clear: Clear | None = None) -> None:
        self._host, self._plan, self._clear = host, plan, clear
        self._stopped: list[MpsSeen] = []
        self._started: list[str] = []
        self._adjusted: list[MpsSeen] = []

    @property
    def record(self) -> dict[str, Any]:
        """Return the journal data of this change.

        The data has the daemons to stop and the names of the daemons to start.
        """
        stops = [step.seen for step in self._plan.stops if step.seen.running]
        return {
            "stops": [to_data(seen.daemon, seen.devices) for seen in stops],
            "starts": [step.name for step in self._plan.starts],
        }

    def stop(self, done: list[str]) -> None:
        """Stop the daemons that are removed or restarted.

        First, their clients are ended if that is permitted. Otherwise BusyError is raised if a daemon has clients.
        """
        if any(step.seen.running for step in self._plan.stops):
            self._make_way()
        for step in self._plan.stops:
            if step.seen.running:
                self._stopped.append(step.seen)
                done.append("mps %s: stop" % step.name)
            # Also stop a daemon that is not running: it may start soon, because systemd retries it or the host is
            # booting.
            self._host.stop(step.name)

    def start(self, host: Host, done: list[str]) -> None:
        """Set new limits, and start new daemons on the GPUs' current devices."""
        for step in self._plan.adjusts:
            self._adjusted.append(step.seen)
            self._host.adjust(step.daemon, step.seen.devices)
            done.append("mps %s: %s" % (step.name, step))
        for step in self._plan.starts:
            devices = mps_plan.devices(step.daemon, host.gpus)
            if devices is None:
                raise ApplyError(
                    step.where,
                    "the devices for the MPS daemon %s do not exist: %s"
                    % (step.name, self._plan.places(step.daemon.places)),
                    "Check for another tool that partitions these GPUs.",
                )
            self._started.append(step.name)
            self._host.start(step.daemon, devices)
            done.append("mps %s: start" % step.name)

    def clear_away(self) -> None:
        """Remove the daemons that this change started, before a rollback of the GPUs."""
        old = {seen.daemon.name for seen in self._stopped}
        for name in self._started:
            self._host.stop(name)
            if name not in old:
                self._host.forget(name)
        self._started.clear()

    def bring_back(self, host: Host) -> None:
        """Restore daemons and limits after a rollback of the GPUs.

        A daemon that cannot be restored does not prevent the others. All errors are then raised as one.
        """
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
                "it has clients, and needs a restart for its previous limits (%s)" % caps(seen.daemon),
                "Run again when they have ended.",
            )

    def forget(self) -> None:
        """Remove the files of daemons that are not in the new layout."""
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
