# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which systemd units a drain stops, and what else goes or would start them again (systemd.unit(5), systemctl(1)).

Stopping a unit stops others with it, those that require it or are part of it; nothing would start these again. And a
unit with a socket, a timer or a path is started again by that, unless it is stopped first.
"""

from __future__ import annotations

import re
from typing import Callable, Iterable, Mapping, Sequence

from .. import systemd
from ..command import Done, TimeoutExpired, run_tool
from ..frozen import frozen
from .record import DrainError

#: Units that a stop takes and a start brings back whole. A target or a slice is started with all that belongs to it,
#: also what did not run before.
TYPES = ("service", "socket", "timer", "path")
_OTHER_TYPES = ("target", "slice", "scope", "mount", "automount", "swap", "device")
#: With an @ an instance must follow it: a template by itself cannot be stopped.
_NAME = re.compile(r"[A-Za-z0-9:_.\\-]+(@(?!\.)[A-Za-z0-9:_.\\-]+)?")
#: Units that are stopped when this one is: the inverse of Requires=, Requisite=, BindsTo=, PartOf=, StopPropagatedFrom=.
_DEPENDENTS = ("RequiredBy", "RequisiteOf", "BoundBy", "ConsistsOf", "PropagatesStopTo")
_PROPERTIES = ("Id", "LoadState", "ActiveState", "Triggers", "TriggeredBy", "BusName", *_DEPENDENTS)
#: States of a unit that need not be started: it never ran, or has ended by itself.
_OFF = ("inactive", "failed", "maintenance")

#: A stop that takes longer goes on in systemd, and is awaited with the jobs.
STOP_SECONDS = 60
#: Longer than the default of TimeoutStartSec= (90 s): systemd's own word on why a unit does not start is the better one.
#: A unit that may take longer goes on starting.
START_SECONDS = 120


@frozen
class Unit:
    """A unit as systemd shows it."""

    name: str
    load: str
    active: str
    triggered_by: tuple[str, ...] = ()
    dependents: tuple[str, ...] = ()
    triggers: tuple[str, ...] = ()
    #: What it is called on D-Bus; empty where it is not on it.
    bus_name: str = ""

    @property
    def runs(self) -> bool:
        """Whether stopping it takes something away that is to come back. One that is stopping was stopped by others."""
        return self.active not in (*_OFF, "deactivating")

    @property
    def is_off(self) -> bool:
        return self.active in _OFF


#: Gives the units of these names, in their order.
Look = Callable[[Sequence[str]], "list[Unit]"]


def unit_name(name: object) -> str:
    """The full name of a unit. Raises DrainError for what is not one, or not one to stop here."""
    text = str(name)
    stem, _dot, suffix = text.rpartition(".")
    if suffix in _OTHER_TYPES and stem:
        problem = "it is a %s: started again, it would bring more than was stopped" % suffix
        raise DrainError("unit %s" % text, problem, "Name the services that it stands for.")
    full = text if stem and suffix in TYPES else text + ".service"
    if not isinstance(name, str) or not name or not _NAME.fullmatch(full):
        cure = "Write a whole name, such as nvidia-dcgm or inference@a.service."
        raise DrainError("unit %r" % name, "this names no unit", cure)
    return full


def closure(name: str, look: Look | None = None) -> tuple[Unit, list[Unit]]:
    """(the unit, all that must be down for it to be down and stay down, itself included, in the order of stopping).

    First what would start one of them again, then what goes along with it, then the unit itself.
    """
    look = look or show
    (asked,) = look([name])
    found, rank = {asked.name: asked}, {asked.name: 0}
    new = [asked]
    while new:
        names: list[str] = []
        for unit in new:
            names += [n for n in (*unit.triggered_by, *unit.dependents) if n not in found and n not in names]
        new = [unit for unit in (look(names) if names else ()) if unit.name not in found]
        for unit in new:
            found[unit.name] = unit
            rank[unit.name] = max(rank.values()) + 1
    triggers = triggers_of(found.values())
    # Who depends on a unit was found after it and goes before it.
    return asked, sorted(found.values(), key=lambda unit: (unit.name not in triggers, -rank[unit.name]))


def triggers_of(units: Iterable[Unit]) -> set[str]:
    return {trigger for unit in units for trigger in unit.triggered_by}


def starting_order(stopped: Sequence[str]) -> list[str]:
    """The reverse of the order of stopping, but sockets first: systemd refuses a socket whose service runs already."""
    backwards = list(reversed(stopped))
    sockets = [name for name in backwards if name.endswith(".socket")]
    return sockets + [name for name in backwards if name not in sockets]


def show(names: Sequence[str]) -> list[Unit]:
    """The units as systemd has them now. Raises DrainError where it does not answer."""
    try:
        found = systemd.show(run_tool, names, _PROPERTIES, timeout_seconds=STOP_SECONDS)
    except systemd.NoAnswerError as error:
        raise DrainError("systemd", str(error), "See: systemctl status.") from None
    except OSError as error:
        raise _no_systemctl(error) from None
    return [_unit(fields) for fields in found]


def _unit(fields: Mapping[str, str]) -> Unit:
    dependents = tuple(name for key in _DEPENDENTS for name in fields[key].split())
    return Unit(
        fields["Id"],
        fields["LoadState"],
        fields["ActiveState"],
        tuple(fields["TriggeredBy"].split()),
        dependents,
        tuple(fields["Triggers"].split()),
        fields["BusName"].strip(),
    )


def stop(name: str) -> None:
    """Stop it; comes back when it is down, or after STOP_SECONDS. Raises DrainError where systemd refuses."""
    try:
        done = _systemctl("stop", "--", name, seconds=STOP_SECONDS)
    except TimeoutExpired:
        return
    if done.returncode != 0:
        raise DrainError("unit %s" % name, "it cannot be stopped: %s" % _said(done), "See: systemctl status %s." % name)


def start(name: str) -> None:
    """Start it; comes back when it runs, or after START_SECONDS. Raises DrainError where it does not start."""
    cure = "See why (systemctl status %s; journalctl -u %s)." % (name, name)
    systemd.reset_failed(run_tool, [name])
    try:
        done = _systemctl("start", "--", name, seconds=START_SECONDS)
    except TimeoutExpired:
        return
    if done.returncode != 0:
        raise DrainError("unit %s" % name, "it does not start: %s" % _said(done), cure)


def _systemctl(*arguments: str, seconds: float) -> Done:
    command = ["systemctl", "--no-ask-password", "--no-pager", *arguments]
    try:
        return run_tool(command, timeout_seconds=seconds)
    except OSError as error:
        raise _no_systemctl(error) from None


def _no_systemctl(error: OSError) -> DrainError:
    return DrainError("this host", "systemctl cannot be run: %s" % error, "Leave gpu_drain_services empty.")


def _said(done: Done) -> str:
    return " ".join((done.stderr or done.stdout).split())[:300] or "exit status %d" % done.returncode
