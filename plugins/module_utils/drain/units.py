# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stop and start systemd units with their dependents and triggers.

systemd also stops the units that require a stopped unit or are part of it, and does not start them again. A socket,
timer or path must be stopped before its unit, or it starts the unit again. See systemd.unit(5) and systemctl(1).
"""

from __future__ import annotations

import re
from typing import Callable, Iterable, Mapping, Sequence

from .. import systemd
from ..frozen import frozen
from ..processes.command import Done, TimeoutExpired, run_tool
from .record import DrainError

# Types of units that a start restores exactly. A started target or slice would also start members that did not run
# before.
TYPES = ("service", "socket", "timer", "path")
_OTHER_TYPES = ("target", "slice", "scope", "mount", "automount", "swap", "device")
# A template cannot be stopped, so an instance name must follow an @.
_NAME = re.compile(r"[A-Za-z0-9:_.\\-]+(@(?!\.)[A-Za-z0-9:_.\\-]+)?")
# systemd properties that list the units that stop together with a unit: the inverse of Requires=, Requisite=, BindsTo=,
# PartOf= and StopPropagatedFrom=.
_DEPENDENTS = ("RequiredBy", "RequisiteOf", "BoundBy", "ConsistsOf", "PropagatesStopTo")
_PROPERTIES = ("Id", "LoadState", "ActiveState", "Triggers", "TriggeredBy", "BusName", *_DEPENDENTS)
# States of a unit that is not running.
_OFF = ("inactive", "failed", "maintenance")

# Seconds to wait for a stop. After that, systemd continues to stop the unit, and the drain waits for it as for a job.
STOP_SECONDS = 60
# Seconds to wait for a start. The limit exceeds the default of TimeoutStartSec= (90 s), because systemd's own error
# says more. A slower start continues.
START_SECONDS = 120


@frozen
class Unit:
    """A unit as reported by systemd."""

    name: str
    load: str
    active: str
    triggered_by: tuple[str, ...] = ()
    dependents: tuple[str, ...] = ()
    triggers: tuple[str, ...] = ()
    #: Name on D-Bus. Empty if the unit has none.
    bus_name: str = ""

    @property
    def runs(self) -> bool:
        """Return whether a stop of the unit must be undone later.

        A unit that is already stopping was stopped by another user or program.
        """
        return self.active not in (*_OFF, "deactivating")

    @property
    def is_off(self) -> bool:
        return self.active in _OFF


# A function that returns the units with these names, in order.
Look = Callable[[Sequence[str]], "list[Unit]"]


def unit_name(name: object) -> str:
    """Return the full name of a unit.

    Raises DrainError if the name is invalid or its type is not supported.
    """
    text = str(name)
    stem, _dot, suffix = text.rpartition(".")
    if suffix in _OTHER_TYPES and stem:
        problem = "it is a %s: starting it again would start more than was stopped" % suffix
        raise DrainError("unit %s" % text, problem, "List its services instead.")
    full = text if stem and suffix in TYPES else text + ".service"
    if not isinstance(name, str) or not name or not _NAME.fullmatch(full):
        cure = "Write a full name, such as nvidia-dcgm or inference@a.service."
        raise DrainError("unit %r" % name, "it is not a valid unit name", cure)
    return full


def closure(name: str, look: Look | None = None) -> tuple[Unit, list[Unit]]:
    """Return the unit, and all units to stop together with it, in order.

    The order is: triggers that would restart one of the units, then dependents, then the unit.
    """
    look = look or show
    (target,) = look([name])
    known, rank = {target.name: target}, {target.name: 0}
    new = [target]
    while new:
        names: list[str] = []
        for unit in new:
            names += [n for n in (*unit.triggered_by, *unit.dependents) if n not in known and n not in names]
        new = [unit for unit in (look(names) if names else ()) if unit.name not in known]
        for unit in new:
            known[unit.name] = unit
            rank[unit.name] = max(rank.values()) + 1
    triggers = triggers_of(known.values())
    # Dependents have higher ranks and stop first.
    return target, sorted(known.values(), key=lambda unit: (unit.name not in triggers, -rank[unit.name]))


def triggers_of(units: Iterable[Unit]) -> set[str]:
    return {trigger for unit in units for trigger in unit.triggered_by}


def starting_order(stopped: Sequence[str]) -> list[str]:
    """Return the order of starting: the reverse order of stopping, but sockets first.

    systemd refuses to start a socket while its service runs.
    """
    backwards = list(reversed(stopped))
    sockets = [name for name in backwards if name.endswith(".socket")]
    return sockets + [name for name in backwards if name not in sockets]


def show(names: Sequence[str]) -> list[Unit]:
    """Return the current state of the units.

    Raises DrainError if systemd does not respond.
    """
    try:
        rows = systemd.show(run_tool, names, _PROPERTIES, timeout_seconds=STOP_SECONDS)
    except systemd.NoAnswerError as error:
        raise DrainError("systemd", str(error), "Check `systemctl status`.") from None
    except OSError as error:
        raise _no_systemctl(error) from None
    return [_unit(fields) for fields in rows]


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
    """Stop a unit and wait up to STOP_SECONDS.

    Raises DrainError if systemd refuses.
    """
    try:
        done = _systemctl("stop", "--", name, seconds=STOP_SECONDS)
    except TimeoutExpired:
        return
    if done.returncode != 0:
        raise DrainError(
            "unit %s" % name, "it cannot be stopped: %s" % _output(done), "Check `systemctl status %s`." % name
        )


def start(name: str) -> None:
    """Start a unit and wait up to START_SECONDS.

    Raises DrainError if the unit does not start.
    """
    cure = "Find out why (systemctl status %s, journalctl -u %s)." % (name, name)
    systemd.reset_failed(run_tool, [name])
    try:
        done = _systemctl("start", "--", name, seconds=START_SECONDS)
    except TimeoutExpired:
        return
    if done.returncode != 0:
        raise DrainError("unit %s" % name, "it does not start: %s" % _output(done), cure)


def _systemctl(*arguments: str, seconds: float) -> Done:
    command = ["systemctl", "--no-ask-password", "--no-pager", *arguments]
    try:
        return run_tool(command, timeout_seconds=seconds)
    except OSError as error:
        raise _no_systemctl(error) from None


def _no_systemctl(error: OSError) -> DrainError:
    return DrainError("this host", "systemctl cannot be run: %s" % error, "Leave gpu_drain_services empty.")


def _output(done: Done) -> str:
    return " ".join((done.stderr or done.stdout).split())[:300] or "exit status %d" % done.returncode
